// RUN: cleave-opt %s --spmd-apply-recipes="mesh=row=2,col=2 recipes=summa2d" --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s

// Rows of experts do not go in steps. Each product gathers its rows over "col"
// and its weights over "row", and makes its features in parts over "col".

// CHECK-LABEL: func.func @loss(
// CHECK: %[[ROWS:.*]] = spmd.all_gather %{{.*}} by <@mesh, [{}, {}, {}, {"col"}]> {{.*}} -> tensor<2x6x2x8xf32>
// CHECK: %[[FIRST:.*]] = spmd.all_gather %{{.*}} by <@mesh, [{}, {}, {"row"}]> {{.*}} -> tensor<4x5x8xf32>
// CHECK: graph.grouped_linear %[[ROWS]], %[[FIRST]], {{.*}} [{"mb", "row"}, {}, {}, {"col"}]>]
// CHECK: %[[INNER:.*]] = spmd.all_gather %{{.*}} by <@mesh, [{}, {}, {}, {"col"}]> {{.*}} -> tensor<2x6x2x10xf32>
// CHECK: %[[SECOND:.*]] = spmd.all_gather %{{.*}} by <@mesh, [{}, {}, {"row"}]> {{.*}} -> tensor<4x4x10xf32>
// CHECK: graph.grouped_linear %[[INNER]], %[[SECOND]], {{.*}} [{"mb", "row"}, {}, {}, {"col"}]>]
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
