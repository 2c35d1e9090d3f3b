// RUN: cleave-opt %s --spmd-propagate --verify-diagnostics | FileCheck %s
// RUN: cleave-opt %s --spmd-propagate --spmd-partition --spmd-verify 2>/dev/null | FileCheck %s --check-prefix=LOCAL

// Who speaks of an axis for more tensors, or else first, operands before results,
// is followed. What the others want of it is left out, with a remark.

spmd.mesh @mesh <["dp" = 2, "tp" = 2]>

// The same axes in another order.
// CHECK-LABEL: func.func @order(
// CHECK: graph.add {{.*}}[#spmd.sharding<@mesh, [{"tp", "dp"}, {}]>]
// LOCAL-LABEL: func.func @order(
// LOCAL: spmd.permute %{{.*}} from <@mesh, [{"dp", "tp"}, {}]> to <@mesh, [{"tp", "dp"}, {}]>
func.func @order(
    %x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"tp", "dp"}, {}]>},
    %y: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp", "tp"}, {}]>}) -> tensor<8x8xf32> {
  // expected-remark @+1 {{shardings disagree: operand 1 shards dimension 0 over {"dp", "tp"}, another operand or result over {"tp", "dp"}}}
  %0 = graph.add %x, %y : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// The same axes on factors of which a tensor has both: none may get an axis
// twice. %y's open dimension and the sum take what %x says.
// CHECK-LABEL: func.func @factors(
// CHECK-SAME: [{"tp", "dp"}, {}]>}) -> (tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {"dp"}]>})
// CHECK: graph.linear {{.*}}[#spmd.sharding<@mesh, [{"tp"}, {}], partial = {"dp"}>]
// CHECK: graph.add {{.*}}[#spmd.sharding<@mesh, [{"tp"}, {"dp"}]>]
// LOCAL-LABEL: func.func @factors(
// LOCAL: graph.add {{.*}} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
func.func @factors(
    %x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {"dp"}]>},
    %y: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"tp", "dp"}, {?}]>}) -> tensor<8x8xf32> {
  // expected-remark @+1 {{operand 1 shards dimension 0 over {"tp", "dp"}, of which "tp" shards another factor of the op}}
  %0 = graph.linear %x, %y : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = graph.add %x, %0 : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}

// Axes of a list are counted one by one: both say "dp" of the rows, and only one
// that "tp" splits them further, which the columns of three tensors want.
// CHECK-LABEL: func.func @digits(
// CHECK: graph.contract {{.*}}[#spmd.sharding<@mesh, [{}, {"tp"}], partial = {"dp"}>]
// LOCAL-LABEL: func.func @digits(
// LOCAL: spmd.all_gather %{{.*}} by <@mesh, [{"tp"}, {}]> {{.*}} : tensor<2x8xf32> -> tensor<4x8xf32>
// LOCAL-NOT: spmd.all_to_all
// LOCAL: graph.contract {{.*}} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
func.func @digits(
    %x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp", "tp"}, {}]>},
    %y: tensor<8x16xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {"tp"}]>}) -> tensor<8x16xf32> {
  // expected-remark @+1 {{operand 0 shards dimension 0 over {"dp", "tp"}, of which "tp" shards another factor of the op}}
  %0 = graph.contract "sa,sb->ab" %x, %y : (tensor<8x8xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
