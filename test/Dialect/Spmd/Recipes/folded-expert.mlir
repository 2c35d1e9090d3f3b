// RUN: cleave-opt %s --spmd-apply-recipes="mesh=tp=2 recipes=megatron-sp,expert(tp)" | FileCheck %s
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=tp=2 recipes=megatron-sp,expert(tp)" --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s --check-prefix=LOCAL
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=tp=2,dp=2 recipes=expert(dp),expert(tp),megatron" | FileCheck %s --check-prefix=BOTH
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=tp=2,dp=2 recipes=expert(dp),expert(tp),megatron" --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s --check-prefix=TWO

// RUN: not cleave-opt %s --spmd-apply-recipes="mesh=tp=8 recipes=megatron,expert(tp)" 2>&1 | FileCheck %s --check-prefix=EIGHT
// RUN: not cleave-opt %s --spmd-apply-recipes="mesh=tp=2,dp=4 recipes=megatron,expert(tp),expert(dp)" 2>&1 | FileCheck %s --check-prefix=PRODUCT
// EIGHT: error: 'graph.contract' op has 4 experts, not divisible by the 8 positions of axis "tp": use 2 or 4
// PRODUCT: error: 'graph.contract' op has 2 experts in each shard, not divisible by the 4 positions of axis "dp": use 2

// Experts are whole, over the axis that shards the inner features of the MLP.
// Tokens, which are sharded along the sequence between blocks, are gathered.

// CHECK-LABEL: func.func @loss(
// CHECK-SAME: graph.name = "up", {{[^}]*}}#spmd.sharding<@mesh, [{"tp"}, {}]>
// CHECK-SAME: graph.name = "experts", {{[^}]*}}#spmd.sharding<@mesh, [{"tp"}, {}, {}]>
// CHECK-SAME: graph.name = "x", graph.role = "input"}
// CHECK: %[[Y:.*]] = graph.add
// CHECK: %[[T:.*]] = spmd.constrain %[[Y]] to <@mesh, [{?}, {}, {?}]>
// CHECK: %[[S:.*]] = graph.scatter_add %[[T]],
// CHECK: %[[R:.*]] = graph.reshape %[[S]]
// CHECK: spmd.constrain %[[R]] to <@mesh, [{?}, {"tp"}, {?}, {?}]>

// Each rank fills and reads the slots of its experts.
// LOCAL-LABEL: func.func @loss(
// LOCAL: spmd.reduce_scatter
// LOCAL: spmd.all_gather {{.*}}tensor<4x3x8xf32> -> tensor<4x6x8xf32>
// LOCAL-NOT: spmd.{{all_|reduce_}}
// LOCAL: graph.scatter_add {{.*}} -> tensor<4x6x8xf32>
// LOCAL: graph.contract {{.*}} -> tensor<4x2x3x5xf32>
// LOCAL: graph.gather {{.*}}partial = {"tp"}
// LOCAL-NOT: spmd.all_gather
// LOCAL: return

// Over two axes: slots are exchanged over that of the samples alone.
// BOTH: graph.name = "experts", {{[^}]*}}#spmd.sharding<@mesh, [{"tp", "dp"}, {}, {}]>
// BOTH: spmd.constrain %{{.*}} to <@mesh, [{?}, {"tp", "dp"}, {?}, {?}]>
// BOTH: spmd.constrain %{{.*}} to <@mesh, [{?}, {"tp"}, {?}, {?}]>
// TWO: graph.scatter_add {{.*}} -> tensor<2x6x8xf32>
// TWO: spmd.all_to_all %{{.*}} over @mesh {"dp"} from 0 to 1 {{.*}}: tensor<2x2x3x8xf32> -> tensor<4x1x3x8xf32>
// TWO: spmd.all_to_all %{{.*}} over @mesh {"dp"} from 1 to 0 {{.*}}: tensor<4x1x3x5xf32> -> tensor<2x2x3x5xf32>
// TWO: graph.gather
func.func @loss(
    %up: tensor<16x8xf32> {graph.name = "up", graph.role = "parameter"},
    %down: tensor<8x16xf32> {graph.name = "down", graph.role = "parameter"},
    %experts: tensor<4x5x8xf32> {graph.name = "experts", graph.role = "parameter"},
    %x: tensor<4x6x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"},
    %p: tensor<4x6xi64> {graph.batch_dim = 0 : i64, graph.name = "p", graph.role = "input"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %u = graph.linear %x, %up : (tensor<4x6x8xf32>, tensor<16x8xf32>) -> tensor<4x6x16xf32>
  %a = graph.gelu %u : (tensor<4x6x16xf32>) -> tensor<4x6x16xf32>
  %d = graph.linear %a, %down : (tensor<4x6x16xf32>, tensor<8x16xf32>) -> tensor<4x6x8xf32>
  %y = graph.add %d, %x : (tensor<4x6x8xf32>, tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
  %s = graph.scatter_add %y, %p {dim = 1 : i64, size = 12 : i64, batch = 1 : i64} : (tensor<4x6x8xf32>, tensor<4x6xi64>) -> tensor<4x12x8xf32>
  %r = graph.reshape %s : (tensor<4x12x8xf32>) -> tensor<4x4x3x8xf32>
  %e = graph.contract "gech,efh->gecf" %r, %experts : (tensor<4x4x3x8xf32>, tensor<4x5x8xf32>) -> tensor<4x4x3x5xf32>
  %b = graph.relu %e : (tensor<4x4x3x5xf32>) -> tensor<4x4x3x5xf32>
  %f = graph.reshape %b : (tensor<4x4x3x5xf32>) -> tensor<4x12x5xf32>
  %c = graph.gather %f, %p {dim = 1 : i64, batch = 1 : i64} : (tensor<4x12x5xf32>, tensor<4x6xi64>) -> tensor<4x6x5xf32>
  %loss = graph.reduce sum %c {dims = array<i64: 0, 1, 2>} : (tensor<4x6x5xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
