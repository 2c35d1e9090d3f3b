// RUN: cleave-opt %s --spmd-apply-recipes="mesh=row=2,col=2 recipes=summa2d" | FileCheck %s
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=depth=2,row=2,col=2 recipes=summa25d" | FileCheck %s --check-prefix=DEPTH
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=row=2,col=2 recipes=summa2d" --spmd-decompose-contraction --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s --check-prefix=LOCAL
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=x=2,y=2 recipes=summa2d(x,y)" | FileCheck %s --check-prefix=NAMED

// Weights lie in what they sum over and what they make; a table, which the head
// shares, with its rows first; a norm's weight as the features that it meets.
// Samples lie over the first axis.
// CHECK-LABEL: func.func @loss(
// CHECK-SAME: graph.name = "table", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"row"}, {"col"}]>
// CHECK-SAME: graph.name = "up", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"col"}, {"row"}]>
// CHECK-SAME: graph.name = "down", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"col"}, {"row"}]>
// CHECK-SAME: graph.name = "g", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"col"}]>
// CHECK-SAME: graph.name = "ids", graph.role = "input", spmd.sharding = #spmd.sharding<@mesh, [{"row"}, {}]>
// CHECK: graph.gather {{.*}}spmd.steps = [#spmd.sharding<@mesh, [{"row"}, {"col"}]>, #spmd.sharding<@mesh, [{?}, {?}]>, #spmd.sharding<@mesh, [{?}, {?}, {"col"}]>]
// CHECK-NOT: graph.rms_norm
// CHECK: graph.rsqrt
// CHECK-COUNT-2: graph.linear {{.*}}spmd.steps = [#spmd.sharding<@mesh, [{?}, {?}, {"col"}]>, #spmd.sharding<@mesh, [{"col"}, {"row"}]>, #spmd.sharding<@mesh, [{?}, {?}, {"col"}]>]
// CHECK: graph.linear {{.*}}spmd.steps = [#spmd.sharding<@mesh, [{?}, {?}, {"col"}]>, #spmd.sharding<@mesh, [{"row"}, {"col"}]>, #spmd.sharding<@mesh, [{?}, {?}, {"col"}]>]

// A third axis has samples, and whole weights.
// DEPTH: graph.name = "up", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"col"}, {"row"}]>
// DEPTH-SAME: graph.name = "ids", graph.role = "input", spmd.sharding = #spmd.sharding<@mesh, [{"depth", "row"}, {}]>

// Two numbers of a row cross devices for a norm, and two blocks for a product.
// LOCAL-LABEL: func.func @loss(
// LOCAL-NOT: all_gather
// LOCAL-COUNT-2: spmd.broadcast {{.*}} : tensor<8x4xf32> -> tensor<8x4xf32>
// LOCAL: spmd.all_reduce sum {{.*}} : tensor<2x6xf32>
// LOCAL: spmd.broadcast {{.*}} over @mesh {"col"} dim 2 part 0 {{.*}} : tensor<2x6x4xf32> -> tensor<2x6x4xf32>
// LOCAL: spmd.broadcast {{.*}} over @mesh {"row"} dim 1 part 0 {{.*}} : tensor<8x4xf32> -> tensor<8x4xf32>
// LOCAL-NOT: all_gather
// LOCAL: spmd.reduce {{.*}} into {{.*}} over @mesh {"col"} dim 2 part 1 {{.*}} : tensor<2x6x8xf32> -> tensor<2x6x8xf32>
// LOCAL-NOT: all_gather
// LOCAL: return

// NAMED: graph.name = "up", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"y"}, {"x"}]>
func.func @loss(
    %table: tensor<16x8xf32> {graph.name = "table", graph.role = "parameter"},
    %up: tensor<16x8xf32> {graph.name = "up", graph.role = "parameter"},
    %down: tensor<8x16xf32> {graph.name = "down", graph.role = "parameter"},
    %g: tensor<8xf32> {graph.name = "g", graph.role = "parameter"},
    %ids: tensor<4x6xi64> {graph.batch_dim = 0 : i64, graph.name = "ids", graph.role = "input"}) -> tensor<f32> {
  %x = graph.gather %table, %ids {dim = 0 : i64} : (tensor<16x8xf32>, tensor<4x6xi64>) -> tensor<4x6x8xf32>
  %n, %r = graph.rms_norm %x weight %g {epsilon = 1.0e-6 : f64} : (tensor<4x6x8xf32>, tensor<8xf32>) -> (tensor<4x6x8xf32>, tensor<4x6xf32>)
  %u = graph.linear %n, %up : (tensor<4x6x8xf32>, tensor<16x8xf32>) -> tensor<4x6x16xf32>
  %d = graph.linear %u, %down : (tensor<4x6x16xf32>, tensor<8x16xf32>) -> tensor<4x6x8xf32>
  %y = graph.add %d, %x : (tensor<4x6x8xf32>, tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
  %z = graph.linear %y, %table : (tensor<4x6x8xf32>, tensor<16x8xf32>) -> tensor<4x6x16xf32>
  %e = graph.exp %z : (tensor<4x6x16xf32>) -> tensor<4x6x16xf32>
  %loss = graph.reduce sum %e {dims = array<i64: 0, 1, 2>} : (tensor<4x6x16xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
