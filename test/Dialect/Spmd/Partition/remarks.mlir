// RUN: cleave-opt %s --spmd-propagate --spmd-partition --remarks-filter=spmd-partition --remark-format=emitRemark 2>&1 >/dev/null | FileCheck %s

// Each movement says where it comes from, what it sends (here 2 * 3/4 of a shard
// of 4x8 elements) and who wanted it.

spmd.mesh @mesh <["dp" = 2, "tp" = 4]>
func.func @f(
    %x: tensor<8x16xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {"tp"}]>},
    %w: tensor<8x16xf32> {spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>},
    %y: tensor<8x16xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>}) -> (tensor<8x8xf32>, tensor<8x16xf32>) {
  // CHECK: remarks.mlir:[[@LINE+1]]:8: remark: [Passed] Collective | Category:spmd-partition | Function=f | Annotation=""argument 0" is sharded over "tp"", Axes="tp", Bytes=192.00, Cause="result 0 of 'graph.linear'", From="[{"dp"}, {}], partial = {"tp"}", Op=spmd.all_reduce, To="[{"dp"}, {}]"
  %0 = graph.linear %x, %w : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x8xf32>
  %1 = graph.exp %0 : (tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK: remarks.mlir:[[@LINE+1]]:8: remark: {{.*}} Bytes=96.00, Cause="result 0 of 'spmd.constrain'", {{.*}} Op=spmd.all_to_all
  %2 = spmd.constrain %y to <@mesh, [{}, {"tp"}]> : tensor<8x16xf32>
  return %1, %2 : tensor<8x8xf32>, tensor<8x16xf32>
}
// CHECK-NOT: remark:
