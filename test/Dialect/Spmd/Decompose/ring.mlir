// RUN: cleave-opt %s --spmd-apply-recipes="mesh=cp=2 recipes=ring" | FileCheck %s --check-prefix=MARK
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=cp=2 recipes=ring" --spmd-decompose-attention | FileCheck %s
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=cp=4 recipes=ring" --spmd-decompose-attention --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s --check-prefix=LOCAL
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=cp=1 recipes=ring" --spmd-decompose-attention | FileCheck %s --check-prefix=ONE

// The recipe says where queries, keys and values lie, and which lowering
// attention has.
// MARK: %[[X:[a-z0-9]+]]: tensor<4x8x2x4xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input", spmd.sharding = #spmd.sharding<@mesh, [{}, {"cp"}, {}, {}]>}
// MARK-COUNT-3: spmd.constrain %{{.*}} to <@mesh, [{?}, {?}, {"cp"}, {?}]>
// MARK-NEXT: %[[O:.*]], %{{.*}} = graph.attention %{{.*}} {causal, scale = 1.000000e+00 : f64, spmd.ring = "cp"}
// MARK-NEXT: spmd.constrain %[[O]] to <@mesh, [{?}, {?}, {"cp"}, {?}]>
// MARK: graph.attention_grad {{.*}} spmd.ring = "cp"

// Forward: keys and values are sent once, before the first step computes.
// CHECK-LABEL: func.func @train(
// CHECK: %[[QUERIES:.*]] = graph.constant dense<[0, 4]>
// CHECK: %[[K1:.*]] = spmd.rotate %[[K:.*]] over @mesh {"cp"} dim 2
// CHECK: %[[V1:.*]] = spmd.rotate %[[V:.*]] over @mesh {"cp"} dim 2
// CHECK: %[[SAME:.*]] = graph.constant dense<[0, 4]>
// CHECK: %[[O:.*]], %[[L:.*]] = graph.attention %[[Q:.*]], %[[K]], %[[V]] query_starts %[[QUERIES]] key_starts %[[SAME]] {blocks = 2 : i64, causal, scale
// CHECK: %[[TURNED:.*]] = graph.constant dense<[4, 0]>
// CHECK: %[[O2:.*]], %[[L2:.*]] = graph.attention %[[Q]], %[[K1]], %[[V1]] query_starts %[[QUERIES]] key_starts %[[TURNED]] onto %[[O]], %[[L]] {blocks = 2
// CHECK: %[[OUT:.*]] = spmd.constrain %[[O2]]
// CHECK: graph.seed

// Backward: they are sent again, their gradients follow, and the own ones come
// last.
// CHECK: %[[KB:.*]] = spmd.barrier %{{.*}} after %[[G:.*]] :
// CHECK: %[[VB:.*]] = spmd.barrier %{{.*}} after %[[G]] :
// CHECK: %[[KB1:.*]] = spmd.rotate %[[KB]]
// CHECK: %[[VB1:.*]] = spmd.rotate %[[VB]]
// CHECK: %[[DQ:.*]], %[[DK:.*]], %[[DV:.*]] = graph.attention_grad %[[G]], %{{.*}}, %[[KB1]], %[[VB1]], %[[OUT]], %[[L2]]
// CHECK: %[[DK1:.*]] = spmd.rotate %[[DK]]
// CHECK: %[[DV1:.*]] = spmd.rotate %[[DV]]
// CHECK: %[[DQ0:.*]], %[[DK0:.*]], %[[DV0:.*]] = graph.attention_grad %[[G]], %{{.*}}, %[[KB]], %[[VB]], %[[OUT]], %[[L2]]
// CHECK: graph.add %[[DQ]], %[[DQ0]]
// CHECK: graph.add %[[DK1]], %[[DK0]]
// CHECK: graph.add %[[DV1]], %[[DV0]]

// On four devices each one has a block, and no block is ever gathered: three
// sends of each forward, and three of each, and of their gradients, backward.
// LOCAL-LABEL: func.func @train(
// LOCAL-NOT: all_gather
// LOCAL-COUNT-6: spmd.rotate {{.*}} : tensor<4x2x2x4xf32>
// LOCAL: graph.attention {{.*}} onto {{.*}}global_shape = array<i64: 4, 2, 8, 8>
// LOCAL: graph.seed
// LOCAL-COUNT-12: spmd.rotate {{.*}} : tensor<4x2x2x4xf32>
// LOCAL-NOT: spmd.rotate
// LOCAL-NOT: all_gather
// LOCAL: return

// One position has no ring.
// ONE-NOT: spmd.rotate
// ONE: graph.attention {{.*}} {causal, scale = 1.000000e+00 : f64}
func.func @train(
    %w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
    %x: tensor<4x8x2x4xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"},
    %lr: tensor<f32> {graph.name = "lr", graph.role = "scalar"},
    %step: tensor<i64> {graph.name = "step", graph.role = "scalar"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<4xf32> {graph.updates = "w"}) {
  %y = graph.mul %x, %w : (tensor<4x8x2x4xf32>, tensor<4xf32>) -> tensor<4x8x2x4xf32>
  %q = graph.transpose %y {permutation = array<i64: 0, 2, 1, 3>} : (tensor<4x8x2x4xf32>) -> tensor<4x2x8x4xf32>
  %k = graph.gelu %q : (tensor<4x2x8x4xf32>) -> tensor<4x2x8x4xf32>
  %v = graph.silu %q : (tensor<4x2x8x4xf32>) -> tensor<4x2x8x4xf32>
  %o, %lse = graph.attention %q, %k, %v {scale = 1.0 : f64, causal}
      : (tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>) -> (tensor<4x2x8x4xf32>, tensor<4x2x8xf32>)
  %loss = graph.reduce sum %o {dims = array<i64: 0, 1, 2, 3>} : (tensor<4x2x8x4xf32>) -> tensor<f32>
  %seed = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  %g = graph.mul %o, %seed : (tensor<4x2x8x4xf32>, tensor<f32>) -> tensor<4x2x8x4xf32>
  %dq, %dk, %dv = graph.attention_grad %g, %q, %k, %v, %o, %lse {scale = 1.0 : f64, causal}
      : (tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>, tensor<4x2x8xf32>)
      -> (tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>)
  %s = graph.add %dq, %dk : (tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>) -> tensor<4x2x8x4xf32>
  %t = graph.add %s, %dv : (tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>) -> tensor<4x2x8x4xf32>
  %dw = graph.reduce sum %t {dims = array<i64: 0, 1, 2>} : (tensor<4x2x8x4xf32>) -> tensor<4xf32>
  %gr = graph.gradient %dw of "w" : (tensor<4xf32>) -> tensor<4xf32>
  %p = graph.sgd %w, %gr lr %lr, %step {momentum = 0.0 : f64, dampening = 0.0 : f64, weight_decay = 0.0 : f64} : (tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<i64>) -> tensor<4xf32>
  return %loss, %p : tensor<f32>, tensor<4xf32>
}
