// RUN: cleave-opt %s --graph-differentiate --graph-apply-optimizer=optimizer=sgd --graph-verify-step | FileCheck %s
// Gradients that wait are state.
// RUN: cleave-opt %s --graph-differentiate --graph-apply-optimizer=optimizer=sgd --graph-delay-updates=delay=2 --graph-verify-step | FileCheck %s

// CHECK-LABEL: func.func @train
// CHECK: graph.seed
// CHECK: graph.gradient
func.func @loss(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                %x: tensor<4xf32> {graph.name = "x", graph.role = "input"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %0 = graph.mul %w, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}
