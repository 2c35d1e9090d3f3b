// Tensors whose number of elements has no number of 64 bits are refused at their place.

// RUN: not cleave-compile %s --plan-only 2>&1 | FileCheck %s
// CHECK: sizes.mlir:[[# @LINE + 3]]:{{.*}}error: 'tensor<9223372036854775807x16xf32>' has more than 2^56 elements, which no machine holds
module {
  func.func @loss(
      %w: tensor<9223372036854775807x16xf32> {graph.name = "w", graph.role = "parameter"},
      %x: tensor<8x16xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64})
      -> (tensor<f32> {graph.name = "loss"}) {
    %s = graph.reduce sum %x {dims = array<i64: 0, 1>} : (tensor<8x16xf32>) -> tensor<f32>
    return %s : tensor<f32>
  }
}
