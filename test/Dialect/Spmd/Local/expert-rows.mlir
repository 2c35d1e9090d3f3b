// RUN: cleave-opt %s --spmd-apply-recipes="mesh=ep=2 recipes=expert" | FileCheck %s --check-prefix=EXPERT
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=tp=2 recipes=megatron" | FileCheck %s --check-prefix=FEATURES
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=ep=2 recipes=expert" --graph-differentiate --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-verify | FileCheck %s --check-prefix=LOCAL
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=tp=2 recipes=megatron,expert(tp)" --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-verify | FileCheck %s --check-prefix=FOLDED
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=tp=2 recipes=megatron,expert(tp)" --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-verify --spmd-keep-rows | FileCheck %s --check-prefix=KEPT
// RUN: not cleave-opt %s --spmd-apply-recipes="mesh=tp=3 recipes=megatron,expert(tp)" 2>&1 | FileCheck %s --check-prefix=FEWER

// Experts of rows: weights and biases are sharded over experts by `expert`, over
// inner features by `megatron`.

// EXPERT-LABEL: func.func @loss(
// EXPERT-SAME: graph.name = "x", graph.role = "input", spmd.sharding = #spmd.sharding<@mesh, [{"ep"}, {}, {}]>
// EXPERT-SAME: graph.name = "up", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"ep"}, {}, {}]>
// EXPERT-SAME: graph.name = "bias", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"ep"}, {}]>
// EXPERT-SAME: graph.name = "down", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"ep"}, {}, {}]>

// FEATURES-LABEL: func.func @loss(
// FEATURES-SAME: graph.name = "up", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{}, {}, {"tp"}]>
// FEATURES-SAME: graph.name = "bias", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>
// FEATURES-SAME: graph.name = "down", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}, {}]>

// Where rows are sharded over the axis of their experts, the weights are gathered:
// a rank computes the rows of its own tokens.

// LOCAL-LABEL: func.func @train(
// LOCAL: %[[UP:.*]] = spmd.all_gather %{{.*}} : tensor<2x8x6xf32> -> tensor<4x8x6xf32>
// LOCAL: graph.grouped_linear %{{.*}}, %[[UP]], %{{.*}} : (tensor<2x5x2x8xf32>, tensor<4x8x6xf32>, tensor<2x5x2xi64>) -> tensor<2x5x2x6xf32>

// Where each rank has all rows, it computes those of its experts, and the others
// are 0: results are partial sums.

// FOLDED-LABEL: func.func @loss(
// FOLDED: %[[O:.*]] = spmd.shard_offset
// FOLDED: %[[Y:.*]] = graph.grouped_linear %{{.*}}, %{{.*}}, %{{.*}} origin %[[O]] {global_size = 4 : i64{{.*}} : (tensor<4x5x2x8xf32>, tensor<2x8x6xf32>, tensor<4x5x2xi64>, tensor<1xi64>) -> tensor<4x5x2x6xf32>

// The second layer reads its own rows of these: nothing is summed between the
// layers.

// KEPT-LABEL: func.func @loss(
// KEPT: %[[Y:.*]] = graph.grouped_linear %{{.*}} origin
// KEPT: %[[B:.*]] = graph.gather %{{.*}} origin
// KEPT-NEXT: %[[S:.*]] = graph.add %[[Y]], %[[B]] {{.*}}partial = {"tp"}
// KEPT-NEXT: %[[R:.*]] = graph.relu %[[S]] {{.*}}partial = {"tp"}
// KEPT: graph.grouped_linear %[[R]]
// KEPT: spmd.all_reduce sum %{{.*}} : tensor<4x5x8xf32>

// FEWER: error: 'graph.grouped_linear' op has 4 experts, not divisible by the 3 positions of axis "tp": use 2 or 4

func.func @loss(
    %x: tensor<4x5x8xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64},
    %up: tensor<4x8x6xf32> {graph.name = "up", graph.role = "parameter"},
    %bias: tensor<4x6xf32> {graph.name = "bias", graph.role = "parameter"},
    %down: tensor<4x6x8xf32> {graph.name = "down", graph.role = "parameter"},
    %router: tensor<4x8xf32> {graph.name = "router", graph.role = "parameter"}) -> (tensor<f32> {graph.name = "loss"}) {
  %logits = graph.linear %x, %router : (tensor<4x5x8xf32>, tensor<4x8xf32>) -> tensor<4x5x4xf32>
  %v, %i = graph.top_k %logits {k = 2 : i64} : (tensor<4x5x4xf32>) -> (tensor<4x5x2xf32>, tensor<4x5x2xi64>)
  %r = graph.reshape %x : (tensor<4x5x8xf32>) -> tensor<4x5x1x8xf32>
  %rows = graph.broadcast %r : (tensor<4x5x1x8xf32>) -> tensor<4x5x2x8xf32>
  %0 = graph.grouped_linear %rows, %up, %i : (tensor<4x5x2x8xf32>, tensor<4x8x6xf32>, tensor<4x5x2xi64>) -> tensor<4x5x2x6xf32>
  %b = graph.gather %bias, %i {dim = 0 : i64} : (tensor<4x6xf32>, tensor<4x5x2xi64>) -> tensor<4x5x2x6xf32>
  %1 = graph.add %0, %b : (tensor<4x5x2x6xf32>, tensor<4x5x2x6xf32>) -> tensor<4x5x2x6xf32>
  %2 = graph.relu %1 : (tensor<4x5x2x6xf32>) -> tensor<4x5x2x6xf32>
  %3 = graph.grouped_linear %2, %down, %i : (tensor<4x5x2x6xf32>, tensor<4x6x8xf32>, tensor<4x5x2xi64>) -> tensor<4x5x2x8xf32>
  %w = graph.reshape %v : (tensor<4x5x2xf32>) -> tensor<4x5x2x1xf32>
  %4 = graph.mul %3, %w : (tensor<4x5x2x8xf32>, tensor<4x5x2x1xf32>) -> tensor<4x5x2x8xf32>
  %5 = graph.reduce sum %4 {dims = array<i64: 2>} : (tensor<4x5x2x8xf32>) -> tensor<4x5x8xf32>
  %6 = graph.add %x, %5 : (tensor<4x5x8xf32>, tensor<4x5x8xf32>) -> tensor<4x5x8xf32>
  %7 = graph.reduce sum %6 {dims = array<i64: 0, 1, 2>} : (tensor<4x5x8xf32>) -> tensor<f32>
  return %7 : tensor<f32>
}
