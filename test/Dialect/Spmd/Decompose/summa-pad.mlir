// RUN: cleave-opt %s --spmd-decompose-contraction --spmd-pad --spmd-propagate --spmd-partition --spmd-verify | FileCheck %s

// Steps make blocks of 3 of 6 features, and their bias lies in 4 parts: what is
// padded to 8 comes behind the blocks, which are gathered first.

spmd.mesh @mesh <["row" = 2, "col" = 2]>

// CHECK-LABEL: func.func @steps(
// CHECK: spmd.reduce {{.*}} over @mesh {"col"} dim 1 part 0
// CHECK: %[[Y:.*]] = spmd.reduce {{.*}} over @mesh {"col"} dim 1 part 1 {{.*}}[{"row"}, {"col"}]{{.*}} -> tensor<2x3xf32>
// CHECK: %[[G:.*]] = spmd.all_gather %[[Y]] by <@mesh, [{}, {"col"}]>
// CHECK: graph.pad %[[G]] {high = array<i64: 0, 2>
// CHECK: graph.add
func.func @steps(%x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"row"}, {"col"}]>},
                 %w: tensor<6x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"row"}, {"col"}]>},
                 %b: tensor<6xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"row", "col"}]>}) -> tensor<4x6xf32> {
  %y = graph.linear %x, %w {spmd.steps = [#spmd.sharding<@mesh, [{"row"}, {"col"}]>, #spmd.sharding<@mesh, [{"row"}, {"col"}]>, #spmd.sharding<@mesh, [{"row"}, {"col"}]>]} : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
  %z = graph.add %y, %b : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
  return %z : tensor<4x6xf32>
}
