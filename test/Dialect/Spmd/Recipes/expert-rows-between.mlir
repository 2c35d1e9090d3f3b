// RUN: cleave-opt %s --spmd-apply-recipes="mesh=ep=2,tp=2 recipes=expert,megatron-sp" --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s

// Rows of experts, of which each token has one for each of its choices, beside
// sequences that are sharded between blocks: tokens are gathered, not rows, and
// what comes back is scaled and added up before its partial sum is scattered.

// CHECK-LABEL: func.func @loss(
// CHECK: %[[TOKENS:.*]] = spmd.all_gather %{{.*}} by <@mesh, [{}, {"tp"}, {}, {}]> {{.*}} : tensor<2x3x1x8xf32> -> tensor<2x6x1x8xf32>
// CHECK: %[[ROWS:.*]] = graph.broadcast %[[TOKENS]] {{.*}} -> tensor<2x6x2x8xf32>
// CHECK: graph.grouped_linear %[[ROWS]],
// CHECK: %[[BACK:.*]] = graph.grouped_linear {{.*}} -> tensor<2x6x2x8xf32>
// CHECK-NOT: spmd.reduce_scatter
// CHECK: %[[SCALED:.*]] = graph.mul %[[BACK]], %{{.*}} -> tensor<2x6x2x8xf32>
// CHECK: %[[SUM:.*]] = graph.reduce sum %[[SCALED]] {dims = array<i64: 2>{{.*}} -> tensor<2x6x8xf32>
// CHECK: spmd.reduce_scatter sum %[[SUM]] by <@mesh, [{}, {"tp"}, {}]> {{.*}} : tensor<2x6x8xf32> -> tensor<2x3x8xf32>
func.func @loss(%x: tensor<4x6x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"},
    %p: tensor<4x6x2xi64> {graph.batch_dim = 0 : i64, graph.name = "p", graph.role = "input"},
    %w: tensor<4x6x2xf32> {graph.batch_dim = 0 : i64, graph.name = "w", graph.role = "input"},
    %up: tensor<10x8xf32> {graph.name = "up", graph.role = "parameter"},
    %down: tensor<8x10xf32> {graph.name = "down", graph.role = "parameter"},
    %first: tensor<4x10x8xf32> {graph.name = "first", graph.role = "parameter"},
    %second: tensor<4x8x10xf32> {graph.name = "second", graph.role = "parameter"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %h = graph.linear %x, %up : (tensor<4x6x8xf32>, tensor<10x8xf32>) -> tensor<4x6x10xf32>
  %a = graph.relu %h : (tensor<4x6x10xf32>) -> tensor<4x6x10xf32>
  %y = graph.linear %a, %down : (tensor<4x6x10xf32>, tensor<8x10xf32>) -> tensor<4x6x8xf32>
  %r = graph.add %x, %y : (tensor<4x6x8xf32>, tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
  %e = graph.exp %r : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
  %t = graph.reshape %e : (tensor<4x6x8xf32>) -> tensor<4x6x1x8xf32>
  %rows = graph.broadcast %t : (tensor<4x6x1x8xf32>) -> tensor<4x6x2x8xf32>
  %u = graph.grouped_linear %rows, %first, %p {transpose} : (tensor<4x6x2x8xf32>, tensor<4x10x8xf32>, tensor<4x6x2xi64>) -> tensor<4x6x2x10xf32>
  %b = graph.relu %u : (tensor<4x6x2x10xf32>) -> tensor<4x6x2x10xf32>
  %v = graph.grouped_linear %b, %second, %p {transpose} : (tensor<4x6x2x10xf32>, tensor<4x8x10xf32>, tensor<4x6x2xi64>) -> tensor<4x6x2x8xf32>
  %f = graph.reshape %w : (tensor<4x6x2xf32>) -> tensor<4x6x2x1xf32>
  %m = graph.mul %v, %f : (tensor<4x6x2x8xf32>, tensor<4x6x2x1xf32>) -> tensor<4x6x2x8xf32>
  %s = graph.reduce sum %m {dims = array<i64: 2>} : (tensor<4x6x2x8xf32>) -> tensor<4x6x8xf32>
  %z = graph.add %r, %s : (tensor<4x6x8xf32>, tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
  %q = graph.mul %z, %z : (tensor<4x6x8xf32>, tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
  %loss = graph.reduce sum %q {dims = array<i64: 0, 1, 2>} : (tensor<4x6x8xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
