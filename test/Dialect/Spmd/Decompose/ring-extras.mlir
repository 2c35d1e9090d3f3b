// RUN: cleave-opt %s --spmd-apply-recipes="mesh=cp=2 recipes=ring" | FileCheck %s --check-prefix=MARK
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=cp=2 recipes=ring" --spmd-decompose-attention | FileCheck %s
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=cp=4 recipes=ring" --spmd-decompose-attention --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s --check-prefix=LOCAL
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=cp=2 recipes=two-ring" --spmd-decompose-attention | FileCheck %s --check-prefix=TWO

// A mask of keys is sharded as they are, a bias of pairs along its queries.
// MARK: spmd.constrain %{{.*}} to <@mesh, [{?}, {"cp"}, {}]> : tensor<2x8x8xf32>
// MARK: spmd.constrain %{{.*}} to <@mesh, [{?}, {?}, {?}, {"cp"}]> : tensor<4x1x1x8xi1>
// MARK: graph.attention {{.*}} spmd.ring = "cp"
// MARK: graph.attention_bias_grad {{.*}} spmd.ring = "cp"
// MARK-NEXT: spmd.constrain %{{.*}} to <@mesh, [{?}, {"cp"}, {}]> : tensor<2x8x8xf32>

// The mask is passed around; each step reads the columns of its keys.
// CHECK-LABEL: func.func @train(
// CHECK: %[[MASK:.*]] = spmd.constrain %{{.*}} : tensor<4x1x1x8xi1>
// CHECK: %[[MASK1:.*]] = spmd.rotate %[[MASK]] over @mesh {"cp"} dim 3
// CHECK: graph.constant dense<{{\[\[}}0, 1]]>
// CHECK: %[[COLUMNS:.*]] = graph.gather {{.*}} {batch = 2 : i64, dim = 3 : i64} : (tensor<2x2x4x2x4xf32>, tensor<2x2xi64>) -> tensor<2x2x4x4xf32>
// CHECK: %[[B0:.*]] = graph.reshape %[[COLUMNS]] : (tensor<2x2x4x4xf32>) -> tensor<2x8x4xf32>
// CHECK: graph.attention {{.*}} bias %[[B0]] mask %[[MASK]] {{.*}}blocks = 2
// CHECK: graph.constant dense<{{\[\[}}1, 0]]>
// CHECK: graph.attention {{.*}} mask %[[MASK1]] {{.*}}blocks = 2
// Both gradients of backward read the same rotations; rows of the bias's one are
// joined.
// CHECK: graph.seed
// CHECK-COUNT-3: spmd.barrier
// CHECK-COUNT-3: spmd.rotate
// CHECK: graph.attention_grad
// CHECK-NOT: spmd.barrier
// CHECK: graph.attention_bias_grad
// CHECK: graph.attention_bias_grad
// CHECK: graph.concat
// CHECK: graph.gather

// A rank holds two rows of the bias, of all keys, and two keys of the mask.
// LOCAL-LABEL: func.func @train(
// LOCAL-NOT: all_gather
// LOCAL: spmd.rotate {{.*}} : tensor<4x1x1x2xi1>
// LOCAL: graph.attention {{.*}}tensor<2x2x2xf32>, tensor<4x1x1x2xi1>
// LOCAL: graph.seed

// Queries whose keys are all hidden have no probabilities.
// TWO-LABEL: func.func @train(
// TWO: graph.add {{.*}} : (tensor<4x2x1x2x4x4xf32>, tensor<1x2x1x2x4x4xf32>)
// TWO: graph.select {{.*}} : (tensor<4x1x1x2x1x4xi1>, tensor<4x2x1x2x4x4xf32>
// TWO: graph.select {{.*}}spmd.ring_shift = {dim = 3 : i64, operand = 0 : i64, steps = 1 : i64}
// TWO: %[[S:.*]] = graph.concat
// TWO: %[[P:.*]] = graph.softmax %[[S]]
// TWO: %[[SEEN:.*]] = graph.compare ne %[[S]]
// TWO: graph.select %[[SEEN]], %[[P]]
func.func @train(
    %b: tensor<2x8x8xf32> {graph.name = "b", graph.role = "parameter"},
    %x: tensor<4x8x2x4xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"},
    %m: tensor<4x8xi1> {graph.batch_dim = 0 : i64, graph.name = "m", graph.role = "input"},
    %lr: tensor<f32> {graph.name = "lr", graph.role = "scalar"},
    %step: tensor<i64> {graph.name = "step", graph.role = "scalar"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<2x8x8xf32> {graph.updates = "b"}) {
  %q = graph.transpose %x {permutation = array<i64: 0, 2, 1, 3>} : (tensor<4x8x2x4xf32>) -> tensor<4x2x8x4xf32>
  %k = graph.gelu %q : (tensor<4x2x8x4xf32>) -> tensor<4x2x8x4xf32>
  %v = graph.silu %q : (tensor<4x2x8x4xf32>) -> tensor<4x2x8x4xf32>
  %seen = graph.reshape %m : (tensor<4x8xi1>) -> tensor<4x1x1x8xi1>
  %o, %lse = graph.attention %q, %k, %v bias %b mask %seen {scale = 1.0 : f64}
      : (tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>, tensor<2x8x8xf32>, tensor<4x1x1x8xi1>)
      -> (tensor<4x2x8x4xf32>, tensor<4x2x8x2xf32>)
  %loss = graph.reduce sum %o {dims = array<i64: 0, 1, 2, 3>} : (tensor<4x2x8x4xf32>) -> tensor<f32>
  %seed = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  %g = graph.mul %o, %seed : (tensor<4x2x8x4xf32>, tensor<f32>) -> tensor<4x2x8x4xf32>
  %dq, %dk, %dv = graph.attention_grad %g, %q, %k, %v, %o, %lse bias %b mask %seen {scale = 1.0 : f64}
      : (tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>, tensor<4x2x8x2xf32>, tensor<2x8x8xf32>, tensor<4x1x1x8xi1>)
      -> (tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>)
  %db = graph.attention_bias_grad %g, %q, %k, %v, %o, %lse bias %b mask %seen {scale = 1.0 : f64}
      : (tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>, tensor<4x2x8x4xf32>, tensor<4x2x8x2xf32>, tensor<2x8x8xf32>, tensor<4x1x1x8xi1>)
      -> tensor<2x8x8xf32>
  %gr = graph.gradient %db of "b" : (tensor<2x8x8xf32>) -> tensor<2x8x8xf32>
  %p = graph.sgd %b, %gr lr %lr, %step {momentum = 0.0 : f64, dampening = 0.0 : f64, weight_decay = 0.0 : f64} : (tensor<2x8x8xf32>, tensor<2x8x8xf32>, tensor<f32>, tensor<i64>) -> tensor<2x8x8xf32>
  return %loss, %p : tensor<f32>, tensor<2x8x8xf32>
}
