// RUN: cleave-opt %s --verify-roundtrip | FileCheck %s

// CHECK: spmd.mesh @mesh <["mb" = 4, "dp" = 2, "tp" = 8]> sequential ["mb"]
spmd.mesh @mesh <["mb" = 4, "dp" = 2, "tp" = 8]> sequential ["mb"]
// CHECK: spmd.mesh @one <["mb" = 1]>
spmd.mesh @one <["mb" = 1]>

// CHECK-LABEL: func.func @shardings(
// CHECK-SAME: #spmd.sharding<@mesh, [{"mb", "dp"}, {"tp":(1)2, ?}], partial = {"tp":(2)2, max "tp":(4)2}>
// CHECK-SAME: #spmd.sharding<@mesh, [], partial = {"mb"}>
func.func @shardings(
    %a: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {"tp":(1)2, ?}], partial = {"tp":(2)2, max "tp":(4)2}>},
    %b: tensor<f32> {spmd.sharding = #spmd.sharding<@mesh, [], partial = {sum "mb"}>})
    -> (tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, [{?}, {}]>}) {
  // CHECK: spmd.all_reduce sum %{{.*}} over @mesh {"mb", "tp":(1)2} : tensor<f32>
  %0 = spmd.all_reduce sum %b over @mesh {"mb", "tp":(1)2} : tensor<f32>
  // CHECK: spmd.shard_offset <@mesh, [{"mb"}, {}]> of tensor<8x4xf32> : tensor<2xi64>
  %1 = spmd.shard_offset <@mesh, [{"mb"}, {}]> of tensor<8x4xf32> : tensor<2xi64>
  // CHECK: spmd.slice %{{.*}} by <@mesh, [{"mb"}, {}]> : tensor<8x4xf32> -> tensor<2x4xf32>
  %3 = spmd.slice %a by <@mesh, [{"mb"}, {}]> : tensor<8x4xf32> -> tensor<2x4xf32>
  // CHECK: spmd.constrain %{{.*}} to <@mesh, [{"dp"}, {}]> {spmd.global_types = [tensor<8x4xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}, {}]>]}
  %2 = spmd.constrain %a to <@mesh, [{"dp"}, {}]> {spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}, {}]>], spmd.global_types = [tensor<8x4xf32>]} : tensor<8x4xf32>
  return %2 : tensor<8x4xf32>
}

// CHECK-LABEL: func.func @movements(
func.func @movements(%x: tensor<8x16xf32>, %after: tensor<f32>, %s: tensor<3xi64>) {
  // CHECK: spmd.all_gather %{{.*}} by <@mesh, [{"tp"}, {"dp"}]> : tensor<8x16xf32> -> tensor<64x32xf32>
  %0 = spmd.all_gather %x by <@mesh, [{"tp"}, {"dp"}]> : tensor<8x16xf32> -> tensor<64x32xf32>
  // CHECK: spmd.reduce_scatter max %{{.*}} by <@mesh, [{"tp":(1)2}, {}]> : tensor<8x16xf32> -> tensor<4x16xf32>
  %1 = spmd.reduce_scatter max %x by <@mesh, [{"tp":(1)2}, {}]> : tensor<8x16xf32> -> tensor<4x16xf32>
  // CHECK: spmd.all_to_all %{{.*}} over @mesh {"dp", "tp":(4)2} from 0 to 1 : tensor<8x16xf32> -> tensor<32x4xf32>
  %2 = spmd.all_to_all %x over @mesh {"dp", "tp":(4)2} from 0 to 1 : tensor<8x16xf32> -> tensor<32x4xf32>
  // CHECK: spmd.all_to_all_rows %{{.*}} from %{{.*}} to %{{.*}} over @mesh {"dp"} : tensor<8x16xf32>, tensor<3xi64> -> tensor<12x16xf32>
  %8 = spmd.all_to_all_rows %x from %s to %s over @mesh {"dp"} : tensor<8x16xf32>, tensor<3xi64> -> tensor<12x16xf32>
  // CHECK: spmd.permute %{{.*}} from <@mesh, [{"dp"}, {}]> to <@mesh, [{"tp":(2)2}, {}]> : tensor<8x16xf32>
  %3 = spmd.permute %x from <@mesh, [{"dp"}, {}]> to <@mesh, [{"tp":(2)2}, {}]> : tensor<8x16xf32>
  // CHECK: spmd.barrier %{{.*}} after %{{.*}} : tensor<8x16xf32>, tensor<f32>
  %4 = spmd.barrier %x after %after : tensor<8x16xf32>, tensor<f32>
  // CHECK: %[[PART:.*]] = spmd.broadcast %{{.*}} over @mesh {"dp"} dim 1 part 1 : tensor<8x16xf32> -> tensor<8x8xf32>
  %5 = spmd.broadcast %x over @mesh {"dp"} dim 1 part 1 : tensor<8x16xf32> -> tensor<8x8xf32>
  // CHECK: %[[SUM:.*]] = spmd.reduce %[[PART]] over @mesh {"dp"} dim 1 part 0 : tensor<8x8xf32> -> tensor<8x16xf32>
  %6 = spmd.reduce %5 over @mesh {"dp"} dim 1 part 0 : tensor<8x8xf32> -> tensor<8x16xf32>
  // CHECK: spmd.reduce %[[PART]] into %[[SUM]] over @mesh {"dp"} dim 1 part 1 : tensor<8x8xf32> -> tensor<8x16xf32>
  %7 = spmd.reduce %5 into %6 over @mesh {"dp"} dim 1 part 1 : tensor<8x8xf32> -> tensor<8x16xf32>
  return
}
