// RUN: cleave-opt %s --spmd-apply-recipes="mesh=cp=2 recipes=two-ring" --spmd-decompose-attention | FileCheck %s
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=cp=4 recipes=two-ring" --spmd-decompose-attention --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s --check-prefix=LOCAL
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=cp=1 recipes=two-ring" --spmd-decompose-attention | FileCheck %s --check-prefix=ONE
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=cp=2 recipes=two-ring" --spmd-decompose-attention --spmd-propagate --spmd-partition | sed 's/steps = 1/steps = 0/' | not cleave-opt --spmd-verify 2>&1 | FileCheck %s --check-prefix=WRONG

// Forward: a ring of keys, whole rows, a ring of values.
// CHECK-LABEL: func.func @train(
// CHECK: %[[K1:.*]] = spmd.rotate %[[K:.*]] over @mesh {"cp"} dim 2
// CHECK: %[[S0:.*]] = graph.select
// CHECK: graph.contract "bgmncd,bgnkd->bgmnck" {{.*}}spmd.ring_shift = {dim = 2 : i64, operand = 1 : i64, steps = 1 : i64}
// CHECK: %[[S1:.*]] = graph.select
// CHECK: %[[S:.*]] = graph.concat %[[S0]], %[[S1]] {dim = 5 : i64}
// CHECK: %[[P:.*]] = graph.softmax %[[S]]
// CHECK: spmd.rotate
// CHECK: graph.contract "bgmnck,bgnke->bgmnce"
// CHECK-NOT: spmd.rotate
// CHECK: graph.seed

// Backward: rings of values and of keys, and one of what both get.
// CHECK: spmd.barrier
// CHECK: spmd.rotate
// CHECK: graph.softmax_grad %{{.*}}, %[[P]]
// CHECK: spmd.barrier
// CHECK: spmd.rotate
// CHECK: graph.contract "bgmnck,bgmncd->bgnkd" {{.*}}spmd.ring_shift = {dim = 2 : i64, result = 0 : i64, steps = 1 : i64}
// CHECK-COUNT-2: spmd.rotate
// CHECK-NOT: spmd.rotate
// CHECK-NOT: graph.attention

// LOCAL-LABEL: func.func @train(
// LOCAL-NOT: all_gather
// LOCAL-COUNT-6: spmd.rotate {{.*}} : tensor<4x2x2x4xf32>
// LOCAL: graph.seed
// LOCAL-COUNT-12: spmd.rotate {{.*}} : tensor<4x2x2x4xf32>
// LOCAL-NOT: spmd.rotate
// LOCAL-NOT: all_gather
// LOCAL: return

// ONE-NOT: spmd.rotate
// ONE: graph.attention {{.*}} {causal, scale = 1.000000e+00 : f64}

// WRONG: error: 'graph.contract' op has an operand 1 ('graph.reshape' at {{.*}}) that was rotated by 1 around {"cp"}, expected not rotated from the other operands
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
