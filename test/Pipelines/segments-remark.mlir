// Segments are data: operations are counted without them, which a remark says.

// RUN: cleave-compile %s --plan-only --remarks --explain=cost 2>&1 | FileCheck %s
// CHECK-COUNT-1: remark: attention has segments: its operations are counted as those of whole rows, and a step computes scores within segments only
// CHECK-NOT: attention has segments
// RUN: cleave-compile %s --plan-only --explain=cost 2>&1 | FileCheck %s --check-prefix=QUIET
// RUN: sed 's/ segments %%documents//; s/, tensor<2x8xi64>) -> (tensor<2x2x8x4xf32>/) -> (tensor<2x2x8x4xf32>/' %s > %t.mlir
// RUN: cleave-compile %t.mlir --plan-only --remarks --explain=cost 2>&1 | FileCheck %s --check-prefix=QUIET
// QUIET-NOT: attention has segments

func.func @loss(
    %x: tensor<2x2x8x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64},
    %documents: tensor<2x8xi64> {graph.name = "documents", graph.role = "input", graph.batch_dim = 0 : i64},
    %scale: tensor<4xf32> {graph.name = "scale", graph.role = "parameter"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %q = graph.mul %x, %scale : (tensor<2x2x8x4xf32>, tensor<4xf32>) -> tensor<2x2x8x4xf32>
  %o, %lse = graph.attention %q, %q, %q segments %documents {causal, scale = 0.5 : f64} : (tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>, tensor<2x8xi64>) -> (tensor<2x2x8x4xf32>, tensor<2x2x8xf32>)
  %p, %lse1 = graph.attention %o, %o, %q segments %documents {causal, scale = 0.5 : f64} : (tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>, tensor<2x8xi64>) -> (tensor<2x2x8x4xf32>, tensor<2x2x8xf32>)
  %loss = graph.reduce sum %p {dims = array<i64: 0, 1, 2, 3>} : (tensor<2x2x8x4xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
