// RUN: cleave-opt %s --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s

spmd.mesh @mesh <["dp" = 2, "cp" = 2, "tp" = 2]>

// Of integers each rank sums its own shard, and the shards before it, of which
// it gathers one number each.
// CHECK-LABEL: func.func @integers(
// CHECK: %[[ROWS:.*]] = graph.reshape %{{.*}} : (tensor<4x2x3xi64>) -> tensor<4x1x2x3xi64>
// CHECK: %[[OWN:.*]] = graph.cumulative_sum %[[ROWS]] {dim = 2 : i64
// CHECK: %[[SUM:.*]] = graph.reduce sum %[[ROWS]] {dims = array<i64: 2>
// CHECK: %[[ALL:.*]] = spmd.all_gather %[[SUM]] by <@mesh, [{}, {"cp", "tp"}, {}]> {{.*}} : tensor<4x1x3xi64> -> tensor<4x4x3xi64>
// CHECK: %[[UPTO:.*]] = graph.cumulative_sum %[[ALL]] {dim = 1 : i64
// CHECK: %[[BEFORE:.*]] = graph.sub %[[UPTO]], %[[ALL]]
// CHECK: %[[OFFSET:.*]] = spmd.slice %[[BEFORE]] by <@mesh, [{}, {"cp", "tp"}, {}]>
// CHECK: graph.reshape %[[OFFSET]]
// CHECK: graph.add %[[OWN]],
// CHECK-NOT: spmd.all_gather
// CHECK: return
func.func @integers(
    %x: tensor<8x8x3xi64> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {"cp", "tp"}, {}]>})
    -> (tensor<8x8x3xi64> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {"cp", "tp"}, {}]>}) {
  %m = graph.mul %x, %x : (tensor<8x8x3xi64>, tensor<8x8x3xi64>) -> tensor<8x8x3xi64>
  %s = graph.cumulative_sum %m {dim = 1 : i64} : (tensor<8x8x3xi64>) -> tensor<8x8x3xi64>
  %y = graph.mul %s, %x : (tensor<8x8x3xi64>, tensor<8x8x3xi64>) -> tensor<8x8x3xi64>
  return %y : tensor<8x8x3xi64>
}

// From the other side likewise.
// CHECK-LABEL: func.func @reversed(
// CHECK: graph.cumulative_sum %{{.*}} {dim = 1 : i64, reverse{{.*}}tensor<1x4xi64>
// CHECK: spmd.all_gather {{.*}} : tensor<1xi64> -> tensor<2xi64>
// CHECK: graph.cumulative_sum %{{.*}} {dim = 0 : i64, reverse{{.*}}tensor<2xi64>
func.func @reversed(
    %x: tensor<8xi64> {spmd.sharding = #spmd.sharding<@mesh, [{"cp"}]>})
    -> (tensor<8xi64> {spmd.sharding = #spmd.sharding<@mesh, [{"cp"}]>}) {
  %s = graph.cumulative_sum %x {dim = 0 : i64, reverse} : (tensor<8xi64>) -> tensor<8xi64>
  %y = graph.mul %s, %x : (tensor<8xi64>, tensor<8xi64>) -> tensor<8xi64>
  return %y : tensor<8xi64>
}

// Floats are added in the order of one device.
// CHECK-LABEL: func.func @floats(
// CHECK: spmd.all_gather {{.*}} : tensor<4xf32> -> tensor<8xf32>
// CHECK: graph.cumulative_sum {{.*}}tensor<8xf32>
func.func @floats(
    %x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"cp"}]>})
    -> (tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"cp"}]>}) {
  %s = graph.cumulative_sum %x {dim = 0 : i64} : (tensor<8xf32>) -> tensor<8xf32>
  %y = graph.mul %s, %x : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  return %y : tensor<8xf32>
}
