// RUN: cleave-compile %s --mesh=pp=2 --stages=v --optimizer=sgd --emit=executable -o - | FileCheck %s

// The second stage writes the buffer that the entry for evaluation takes and
// does not read: the first stage holds no copy of it, which nothing would
// update.

// CHECK-LABEL: exec.program @evaluate.0(
// CHECK-NOT: graph.name = "m"
// CHECK-LABEL: exec.program @evaluate.1(
// CHECK-NOT: graph.name = "m"
// CHECK-LABEL: exec.program @train.0(
// CHECK-NOT: graph.name = "m"
// CHECK-LABEL: exec.program @train.1(
// CHECK-SAME: graph.name = "m"
// CHECK-SAME: graph.updates = "m"
func.func @loss(%x: tensor<2x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64},
                %w: tensor<4x4xf32> {graph.name = "w", graph.role = "parameter"},
                %v: tensor<4x4xf32> {graph.name = "v", graph.role = "parameter"},
                %m: tensor<4xf32> {graph.name = "m", graph.role = "buffer"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<4xf32> {graph.updates = "m"}) {
  %0 = graph.linear %x, %w : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %1 = graph.tanh %0 : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %2 = graph.linear %1, %v : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %3 = graph.tanh %2 : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %4 = graph.reduce sum %3 {dims = array<i64: 0>} : (tensor<2x4xf32>) -> tensor<4xf32>
  %5 = graph.add %m, %4 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %6 = graph.reduce sum %3 {dims = array<i64: 0, 1>} : (tensor<2x4xf32>) -> tensor<f32>
  return %6, %5 : tensor<f32>, tensor<4xf32>
}
