// Where stages may begin: by another name of a parameter, and not at a head that is
// computed with its loss.

// RUN: cleave-compile %s --mesh pp=2 --stages u --emit=scheduled > %t.named
// RUN: cleave-compile %s --mesh pp=2 --stages other --emit=scheduled | diff - %t.named
// RUN: not cleave-compile %s --mesh pp=2 --stages head --emit=scheduled 2>&1 | FileCheck %s --check-prefix=HEAD
// RUN: not cleave-compile %s --mesh pp=2 --stages absent --emit=scheduled 2>&1 | FileCheck %s --check-prefix=ABSENT

// HEAD: error: 'func.func' op cannot begin a stage at 'head': its reader is computed with the loss, in the last stage; begin the stage at an earlier parameter
// ABSENT: error: 'func.func' op has no parameter whose name begins with 'absent', at which a stage is to begin
func.func @loss(
    %w: tensor<64x8xf32> {graph.name = "w", graph.role = "parameter"},
    %u: tensor<8x8xf32> {graph.name = "u", graph.role = "parameter", graph.aliases = ["other"]},
    %head: tensor<64x8xf32> {graph.name = "head", graph.role = "parameter"},
    %ids: tensor<16xi64> {graph.name = "ids", graph.role = "input", graph.batch_dim = 0 : i64},
    %t: tensor<16xi64> {graph.name = "t", graph.role = "input", graph.batch_dim = 0 : i64}) -> (tensor<f32> {graph.name = "loss"}) {
  %x = graph.gather %w, %ids {dim = 0 : i64} : (tensor<64x8xf32>, tensor<16xi64>) -> tensor<16x8xf32>
  %y = graph.linear %x, %u : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
  %z = graph.tanh %y : (tensor<16x8xf32>) -> tensor<16x8xf32>
  %l = graph.linear %z, %head : (tensor<16x8xf32>, tensor<64x8xf32>) -> tensor<16x64xf32>
  %rows, %lse = graph.cross_entropy %l, %t : (tensor<16x64xf32>, tensor<16xi64>) -> (tensor<16xf32>, tensor<16xf32>)
  %sum = graph.reduce sum %rows {dims = array<i64: 0>} : (tensor<16xf32>) -> tensor<f32>
  return %sum : tensor<f32>
}
