// RUN: cleave-opt %s --graph-differentiate --graph-mixed-precision | FileCheck %s
// RUN: sed 's/"16bit"/"f8"/' %s > %t && not cleave-opt %t --graph-mixed-precision 2>&1 | FileCheck %s --check-prefix=BAD

// The precision that is chosen for an op is that of its gradients too. An op
// that is computed in f32 reads what is rounded for others only where forward
// has rounded it anyway.

// BAD: attribute 'graph.precision' must be f32 or 16bit

func.func @loss(%w: tensor<8x8xf32> {graph.name = "w", graph.role = "parameter"},
                %u: tensor<8x8xf32> {graph.name = "u", graph.role = "parameter"},
                %x: tensor<4x8xf32> {graph.name = "x", graph.role = "input"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %0 = graph.linear %x, %w {graph.precision = "f32"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = graph.exp %0 {graph.precision = "16bit"} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = graph.linear %1, %u : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %3 = graph.reduce sum %2 {dims = array<i64: 0, 1>} : (tensor<4x8xf32>) -> tensor<f32>
  return %3 : tensor<f32>
}

// CHECK-LABEL: func.func @train(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<8x8xf32>{{.*}}, %[[U:[a-z0-9]+]]: tensor<8x8xf32>{{.*}}, %[[X:[a-z0-9]+]]: tensor<4x8xf32>
// CHECK: %[[Y:.*]] = graph.linear %[[X]], %[[W]] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
// CHECK: %[[Y16:.*]] = graph.cast %[[Y]] : (tensor<4x8xf32>) -> tensor<4x8xbf16>
// CHECK: %[[E:.*]] = graph.exp %[[Y16]] : (tensor<4x8xbf16>) -> tensor<4x8xbf16>
// CHECK: graph.linear %[[E]], %{{.*}} {result_element = f32} : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xf32>
// The gradient of the first weight is a product of f32.
// CHECK: %[[G:.*]] = graph.contract "{{.*}}" %{{.*}} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
// CHECK: graph.gradient %[[G]] of "w"
// CHECK-NOT: graph.precision
