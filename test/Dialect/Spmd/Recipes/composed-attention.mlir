// Attention that is not one op, with a bound of its scores: queries of the
// matmuls are sharded, and keys are replicated there.

// RUN: cleave-opt %s --spmd-apply-recipes="mesh=cp=2 recipes=context" | FileCheck %s --check-prefixes=CHECK,CONTEXT
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=cp=2 recipes=ring" 2>%t.err | FileCheck %s --check-prefixes=CHECK,CONTEXT
// RUN: FileCheck %s --check-prefix=RING < %t.err
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=cp=2 recipes=ulysses" | FileCheck %s --check-prefixes=CHECK,HEADS
// RUN: not cleave-opt %s --spmd-apply-recipes="mesh=cp=3 recipes=ulysses" 2>&1 | FileCheck %s --check-prefix=THREE

// RING: remark: the scores of this softmax are held for all keys: recipe 'ring' gathers keys and values of such an attention over axis "cp" instead of passing them around
// THREE: error: 'graph.contract' op has 2 heads in common with the scores of an attention, not divisible by the 3 positions over which ulysses shards heads

// CHECK-LABEL: func.func @loss
// CHECK-SAME: tensor<4x6x8xf32> {{{.*}}spmd.sharding = #spmd.sharding<@mesh, [{}, {"cp"}, {}]>}
func.func @loss(
    %query: tensor<8x8xf32> {graph.name = "query", graph.role = "parameter"},
    %x: tensor<4x6x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"}) -> tensor<f32> {
  %q = graph.linear %x, %query : (tensor<4x6x8xf32>, tensor<8x8xf32>) -> tensor<4x6x8xf32>
  %h = graph.reshape %q : (tensor<4x6x8xf32>) -> tensor<4x6x2x4xf32>
  // CONTEXT: %[[Q:.*]] = spmd.constrain %{{.*}} to <@mesh, [{?}, {"cp"}, {?}, {?}]>
  // CONTEXT: %[[K:.*]] = spmd.constrain %{{.*}} to <@mesh, [{?}, {}, {?}, {?}]>
  // HEADS: %[[Q:.*]] = spmd.constrain %{{.*}} to <@mesh, [{?}, {?}, {"cp"}, {?}]>
  // HEADS: %[[K:.*]] = spmd.constrain %{{.*}} to <@mesh, [{?}, {?}, {"cp"}, {?}]>
  // CHECK: %[[S:.*]] = graph.contract "bqhd,bkhd->bhqk" %[[Q]], %[[K]]
  // CONTEXT: spmd.constrain %[[S]] to <@mesh, [{?}, {?}, {"cp"}, {}]>
  // HEADS: spmd.constrain %[[S]] to <@mesh, [{?}, {"cp"}, {?}, {?}]>
  %s = graph.contract "bqhd,bkhd->bhqk" %h, %h : (tensor<4x6x2x4xf32>, tensor<4x6x2x4xf32>) -> tensor<4x2x6x6xf32>
  %t = graph.tanh %s : (tensor<4x2x6x6xf32>) -> tensor<4x2x6x6xf32>
  %p = graph.softmax %t : (tensor<4x2x6x6xf32>) -> tensor<4x2x6x6xf32>
  // CHECK: %[[O:.*]] = graph.contract "bhqk,bkhd->bqhd"
  // CONTEXT: spmd.constrain %[[O]] to <@mesh, [{?}, {"cp"}, {?}, {?}]>
  // HEADS: %[[OH:.*]] = spmd.constrain %[[O]] to <@mesh, [{?}, {?}, {"cp"}, {?}]>
  // HEADS: spmd.constrain %[[OH]] to <@mesh, [{?}, {"cp"}, {?}, {?}]>
  %o = graph.contract "bhqk,bkhd->bqhd" %p, %h : (tensor<4x2x6x6xf32>, tensor<4x6x2x4xf32>) -> tensor<4x6x2x4xf32>
  %loss = graph.reduce sum %o {dims = array<i64: 0, 1, 2, 3>} : (tensor<4x6x2x4xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
