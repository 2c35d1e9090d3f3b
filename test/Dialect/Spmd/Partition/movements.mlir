// RUN: cleave-opt %s --spmd-propagate --spmd-partition --spmd-verify --split-input-file 2>/dev/null | FileCheck %s
// RUN: cleave-opt %s --spmd-propagate --spmd-partition --spmd-verify --split-input-file 2>/dev/null | cleave-opt --split-input-file --spmd-verify | FileCheck %s

// Each kind of movement, where an annotation asks for it.

spmd.mesh @mesh <["dp" = 2, "tp" = 4]>

// CHECK-LABEL: func.func @kinds(
func.func @kinds(
    %x: tensor<8x16xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {"tp"}]>},
    %y: tensor<8x16xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>})
    -> (tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x16xf32>) {
  // CHECK: %[[GATHER:.*]] = spmd.all_gather %arg0 by <@mesh, [{}, {"tp"}]> {{.*}} : tensor<4x4xf32> -> tensor<4x16xf32>
  %0 = spmd.constrain %x to <@mesh, [{"dp"}, {}]> : tensor<8x16xf32>
  // CHECK: %[[MOVED:.*]] = spmd.all_to_all %arg1 over @mesh {"tp"} from 0 to 1 {{.*}} : tensor<2x16xf32> -> tensor<8x4xf32>
  %1 = spmd.constrain %y to <@mesh, [{}, {"tp"}]> : tensor<8x16xf32>
  // CHECK: %[[SLICE:.*]] = spmd.slice %arg1 by <@mesh, [{}, {"dp"}]> {{.*}} : tensor<2x16xf32> -> tensor<2x8xf32>
  %2 = spmd.constrain %y to <@mesh, [{"tp"}, {"dp"}]> : tensor<8x16xf32>
  // The axis that goes is the major one: no one holds the whole.
  // CHECK: %[[PERMUTED:.*]] = spmd.permute %arg0 from <@mesh, [{"dp"}, {"tp"}]> to <@mesh, [{"tp":(1)2}, {"dp", "tp":(2)2}]> {{.*}} : tensor<4x4xf32>
  // CHECK: return %[[GATHER]], %[[MOVED]], %[[SLICE]], %[[PERMUTED]]
  %3 = spmd.constrain %x to <@mesh, [{"tp":(1)2}, {"dp", "tp":(2)2}]> : tensor<8x16xf32>
  return %0, %1, %2, %3 : tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x16xf32>
}

// A sum is scattered where its reader is split along that axis, ...
// CHECK-LABEL: func.func @scattered(
func.func @scattered(
    %x: tensor<8x16xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {"tp"}]>},
    %w: tensor<8x16xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>}) -> tensor<8x8xf32> {
  // CHECK: %[[SUM:.*]] = graph.linear {{.*}} partial = {"tp"}
  // CHECK: %[[PART:.*]] = spmd.reduce_scatter sum %[[SUM]] by <@mesh, [{}, {"tp"}]>
  // CHECK: graph.exp %[[PART]]
  %0 = graph.linear %x, %w : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x8xf32>
  %1 = spmd.constrain %0 to <@mesh, [{"dp"}, {"tp"}]> : tensor<8x8xf32>
  %2 = graph.exp %1 : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}

// ... and reduced where it is not; where it is linear, later.
// CHECK-LABEL: func.func @reduced(
func.func @reduced(
    %x: tensor<8x16xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {"tp"}]>},
    %w: tensor<8x16xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>}) -> tensor<8x8xf32> {
  // CHECK: %[[SUM:.*]] = graph.linear
  // CHECK-NEXT: %[[NEG:.*]] = graph.neg %[[SUM]] {{.*}} partial = {"tp"}
  // CHECK-NEXT: %[[WHOLE:.*]] = spmd.all_reduce sum %[[NEG]] over @mesh {"tp"}
  // CHECK-NEXT: graph.exp %[[WHOLE]]
  %0 = graph.linear %x, %w : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x8xf32>
  %1 = graph.neg %0 : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = graph.exp %1 : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}

// One moved value serves all that want it.
// CHECK-LABEL: func.func @shared(
func.func @shared(
    %x: tensor<8x16xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {"tp"}]>}) -> (tensor<8x16xf32>, tensor<8x16xf32>) {
  // CHECK-COUNT-1: spmd.all_gather
  // CHECK-NOT: spmd.all_gather
  %0 = graph.softmax %x : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %1 = graph.cumulative_sum %x {dim = 1 : i64} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  // CHECK: return
  return %0, %1 : tensor<8x16xf32>, tensor<8x16xf32>
}

// What is no splat has no form on a shard: it is made whole, and cut.
// CHECK-LABEL: func.func @constant(
func.func @constant(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>}) -> tensor<4xf32> {
  // CHECK: %[[C:.*]] = graph.constant {{.*}} : tensor<4xf32>
  // CHECK: spmd.slice %[[C]] by <@mesh, [{"dp"}]>
  %0 = graph.constant dense<[0.0, 1.0, 2.0, 3.0]> : tensor<4xf32>
  %1 = graph.add %x, %0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// An axis that would split an inner part of a dimension alone is gathered.
// CHECK-LABEL: func.func @inner(
func.func @inner(%x: tensor<4x2xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"dp"}]>}) -> tensor<8xf32> {
  // CHECK: spmd.all_gather %arg0 by <@mesh, [{}, {"dp"}]>
  // CHECK: graph.reshape {{.*}} : (tensor<4x2xf32>) -> tensor<8xf32>
  %0 = graph.reshape %x : (tensor<4x2xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

spmd.mesh @mesh <["mb" = 2, "tp" = 2]> sequential ["mb"]

// Backward keeps the smallest form of what forward had, and gathers it again;
// what was reduced or exchanged in forward is read as it is.
// CHECK-LABEL: func.func @eras(
// CHECK-SAME: %[[X:arg0]]: tensor<2x2xf32>
func.func @eras(
    %x: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"mb"}, {"tp"}]>},
    %w: tensor<4x4xf32> {graph.name = "w", spmd.sharding = #spmd.sharding<@mesh, [{}, {}]>}) -> (tensor<f32>, tensor<4x4xf32>) {
  // CHECK: %[[FORWARD:.*]] = spmd.all_gather %[[X]] by
  // CHECK: graph.linear %[[FORWARD]],
  %whole = spmd.constrain %x to <@mesh, [{"mb"}, {}]> : tensor<4x4xf32>
  %y = graph.linear %whole, %w : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %loss = graph.reduce sum %y {dims = array<i64: 0, 1>} : (tensor<4x4xf32>) -> tensor<f32>
  // CHECK: %[[SEED:.*]] = graph.seed
  %seed = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  %dy = graph.broadcast %seed : (tensor<f32>) -> tensor<4x4xf32>
  // CHECK: %[[SAVED:.*]] = spmd.barrier %[[X]] after %[[SEED]]
  // CHECK: %[[BACKWARD:.*]] = spmd.all_gather %[[SAVED]]
  // CHECK: graph.contract "bo,bi->oi" %{{.*}}, %[[BACKWARD]]
  %dw = graph.contract "bo,bi->oi" %dy, %whole : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %g = graph.gradient %dw of "w" : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %loss, %g : tensor<f32>, tensor<4x4xf32>
}
