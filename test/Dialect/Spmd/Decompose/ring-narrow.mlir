// RUN: cleave-opt %s --spmd-apply-recipes="mesh=cp=2 recipes=ring" --spmd-decompose-attention | FileCheck %s
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=cp=2 recipes=two-ring" --spmd-decompose-attention | FileCheck %s --check-prefix=TWO

// Keys and values travel in 16 bits. What a step adds to another is f32, and is
// rounded once, where the attention was: its output, and the gradient of
// queries. The gradients of keys and values travel as the op has them, here in
// f32, as mixed precision asks for.
// CHECK-LABEL: func.func @logits(
// CHECK-COUNT-2: spmd.rotate {{.*}} : tensor<2x2x8x4xbf16>
// CHECK: %[[O:.*]], %[[L:.*]] = graph.attention {{.*}} result_element = f32{{.*}} -> (tensor<2x2x8x4xf32>,
// CHECK: %[[O2:.*]], %{{.*}} = graph.attention {{.*}} onto %[[O]], %[[L]] {{.*}} -> (tensor<2x2x8x4xf32>,
// CHECK: graph.cast %[[O2]] : (tensor<2x2x8x4xf32>) -> tensor<2x2x8x4xbf16>
// CHECK-COUNT-2: spmd.rotate {{.*}} : tensor<2x2x8x4xbf16>
// CHECK: %[[DQ:.*]], %[[DK:.*]], %[[DV:.*]] = graph.attention_grad {{.*}} -> (tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>)
// CHECK: spmd.rotate %[[DK]] {{.*}} : tensor<2x2x8x4xf32>
// CHECK: spmd.rotate %[[DV]] {{.*}} : tensor<2x2x8x4xf32>
// CHECK: graph.add %[[DQ]], {{.*}} -> tensor<2x2x8x4xf32>

// TWO-LABEL: func.func @logits(
// TWO: spmd.rotate {{.*}} : tensor<2x2x8x4xbf16>
// TWO: graph.contract {{.*}} -> tensor<2x2x1x2x4x4xf32>
// TWO: graph.softmax {{.*}} -> tensor<2x2x1x2x4x8xf32>
// TWO: spmd.rotate {{.*}} : tensor<2x2x8x4xbf16>
// TWO: graph.reduce sum {{.*}} -> tensor<2x2x1x2x4xf32>
// TWO: graph.mul {{.*}} -> tensor<2x2x1x2x4x8xf32>
// TWO: spmd.rotate {{.*}} : tensor<2x2x8x4xf32>
func.func @logits(
    %q: tensor<2x2x8x4xbf16> {graph.batch_dim = 0 : i64, graph.name = "q", graph.role = "input"},
    %k: tensor<2x2x8x4xbf16> {graph.batch_dim = 0 : i64, graph.name = "k", graph.role = "input"},
    %v: tensor<2x2x8x4xbf16> {graph.batch_dim = 0 : i64, graph.name = "v", graph.role = "input"},
    %g: tensor<2x2x8x4xbf16> {graph.batch_dim = 0 : i64, graph.name = "g", graph.role = "input"})
    -> (tensor<2x2x8x4xf32> {graph.name = "dq"}, tensor<2x2x8x4xf32> {graph.name = "dk"}, tensor<2x2x8x4xf32> {graph.name = "dv"}) {
  %o, %lse = graph.attention %q, %k, %v {scale = 1.0 : f64}
      : (tensor<2x2x8x4xbf16>, tensor<2x2x8x4xbf16>, tensor<2x2x8x4xbf16>) -> (tensor<2x2x8x4xbf16>, tensor<2x2x8xf32>)
  %dq, %dk, %dv = graph.attention_grad %g, %q, %k, %v, %o, %lse {scale = 1.0 : f64, result_element = f32}
      : (tensor<2x2x8x4xbf16>, tensor<2x2x8x4xbf16>, tensor<2x2x8x4xbf16>, tensor<2x2x8x4xbf16>, tensor<2x2x8x4xbf16>, tensor<2x2x8xf32>)
      -> (tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>)
  return %dq, %dk, %dv : tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>
}
