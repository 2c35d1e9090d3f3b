// RUN: cleave-opt %s --graph-mixed-precision | FileCheck %s

// What is computed from a parameter is f32, behind slices and gathers too. A
// product reads the same move of the 16-bit copy, and an embedding rounds.

// CHECK-LABEL: func.func @loss
// CHECK-SAME: %[[W:[^ ]+]]: tensor<4x8xf32> {graph.name = "w"
// CHECK: %[[C:.*]] = graph.cast %[[W]] : {{.*}} -> tensor<4x8xbf16>
// CHECK: %[[A:.*]] = graph.slice %[[W]] {{.*}} -> tensor<4x4xf32>
// CHECK: %[[G:.*]] = graph.gather %[[A]], {{.*}} -> tensor<4x4xf32>
// CHECK: graph.tanh %[[G]] : {{.*}} -> tensor<4x4xf32>
// CHECK: %[[E:.*]] = graph.gather %[[C]], {{.*}} -> tensor<5x8xbf16>
// CHECK: %[[N:.*]] = graph.transpose %[[C]] {{.*}} -> tensor<8x4xbf16>
// CHECK: graph.linear %{{.*}}, %[[N]]
// CHECK: graph.add %{{.*}}, %[[E]] : {{.*}} -> tensor<5x8xbf16>
// CHECK-NOT: tensor<8x4xf32>
func.func @loss(
    %w: tensor<4x8xf32> {graph.name = "w", graph.role = "parameter"},
    %i: tensor<5xi64> {graph.name = "i", graph.role = "input"},
    %x: tensor<5x4xf32> {graph.name = "x", graph.role = "input"})
    -> (tensor<4x4xf32> {graph.name = "a"}, tensor<5x8xf32> {graph.name = "y"}) {
  %a = graph.slice %w {offsets = array<i64: 0, 4>, sizes = array<i64: 4, 4>, strides = array<i64: 1, 1>} : (tensor<4x8xf32>) -> tensor<4x4xf32>
  %j = graph.iota {dim = 0, start = 0} : tensor<4xi64>
  %g = graph.gather %a, %j {dim = 0} : (tensor<4x4xf32>, tensor<4xi64>) -> tensor<4x4xf32>
  %t = graph.tanh %g : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %e = graph.gather %w, %i {dim = 0} : (tensor<4x8xf32>, tensor<5xi64>) -> tensor<5x8xf32>
  %n = graph.transpose %w {permutation = array<i64: 1, 0>} : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %p = graph.linear %x, %n : (tensor<5x4xf32>, tensor<8x4xf32>) -> tensor<5x8xf32>
  %y = graph.add %p, %e : (tensor<5x8xf32>, tensor<5x8xf32>) -> tensor<5x8xf32>
  return %t, %y : tensor<4x4xf32>, tensor<5x8xf32>
}

// Single elements of a weight, at places that a step is given, are no rows of a
// table: what is computed of them is f32.

// CHECK-LABEL: func.func @elements
// CHECK-NOT: bf16
// CHECK: graph.gather {{.*}} -> tensor<5xf32>
// CHECK-NOT: bf16
func.func @elements(
    %w: tensor<4x8xf32> {graph.name = "w", graph.role = "parameter"},
    %i: tensor<5xi64> {graph.name = "i", graph.role = "input"},
    %x: tensor<5xf32> {graph.name = "x", graph.role = "input"})
    -> (tensor<5xf32> {graph.name = "y"}) {
  %f = graph.reshape %w : (tensor<4x8xf32>) -> tensor<32xf32>
  %g = graph.gather %f, %i {dim = 0} : (tensor<32xf32>, tensor<5xi64>) -> tensor<5xf32>
  %y = graph.mul %g, %x : (tensor<5xf32>, tensor<5xf32>) -> tensor<5xf32>
  return %y : tensor<5xf32>
}
