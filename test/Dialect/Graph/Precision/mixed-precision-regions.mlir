// RUN: cleave-opt %s --graph-differentiate --graph-mixed-precision | FileCheck %s

// What is chosen to be f32 is so, and so are its gradient and their sum; the
// products around it have 16-bit factors. Sums by index are f32, as angles are.

// CHECK-LABEL: func.func @train
// CHECK: %[[Y:.*]] = graph.linear
// CHECK: %[[S:.*]] = graph.add %[[Y]], {{.*}} -> tensor<4x8xf32>
// CHECK: %[[T:.*]] = graph.mul %[[S]], %[[S]] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
// CHECK: graph.scatter_add %[[T]], {{.*}} -> tensor<2x8xf32>
// CHECK: graph.seed
// CHECK: graph.mul %{{.*}}, %[[S]] : {{.*}} -> tensor<4x8xf32>
// CHECK: graph.add %{{.*}} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
// CHECK: graph.contract {{.*}}bf16
func.func @loss(
    %x: tensor<4x8xf32> {graph.name = "x", graph.role = "input"},
    %i: tensor<4xi64> {graph.name = "i", graph.role = "input"},
    %w: tensor<8x8xf32> {graph.name = "w", graph.role = "parameter"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %y = graph.linear %x, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %c = graph.constant dense<100.0> : tensor<f32>
  %s = graph.add %y, %c {graph.precision = "f32"} : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  %t = graph.mul %s, %s {graph.precision = "f32"} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %a = graph.scatter_add %t, %i {dim = 0, size = 2} : (tensor<4x8xf32>, tensor<4xi64>) -> tensor<2x8xf32>
  %l = graph.reduce sum %a {dims = array<i64: 0, 1>} : (tensor<2x8xf32>) -> tensor<f32>
  return %l : tensor<f32>
}
