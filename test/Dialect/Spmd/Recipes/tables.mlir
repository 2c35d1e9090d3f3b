// RUN: cleave-opt %s --graph-differentiate --spmd-apply-recipes="mesh=ep=2 recipes=expert" --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-optimize-collectives | FileCheck %s
// RUN: not cleave-opt %s --spmd-apply-recipes="mesh=ep=8 recipes=expert" 2>&1 | FileCheck %s --check-prefix=FEW

// Whole tables are on each rank: indices are sent to them, rows back to the samples, and the
// gradients of rows to the tables. Nothing of the size of a table is sent.

// CHECK-LABEL: func.func @train
// CHECK-SAME: tensor<2x10x3xf32> {graph.name = "tables", {{.*}}spmd.sharding = #spmd.sharding<@mesh, [{"ep"}, {}, {}]>}
// CHECK: spmd.all_to_all %{{.*}} over @mesh {"ep"} from 0 to 1 {{.*}} : tensor<4x4xi64> -> tensor<8x2xi64>
// CHECK: graph.gather {{.*}} (tensor<2x10x3xf32>, tensor<2x8xi64>) -> tensor<2x8x3xf32>
// CHECK: spmd.all_to_all %{{.*}} over @mesh {"ep"} from 1 to 0 {{.*}} : tensor<8x2x3xf32> -> tensor<4x4x3xf32>
// CHECK: spmd.all_to_all %{{.*}} over @mesh {"ep"} from 0 to 1 {{.*}} : tensor<4x4x3xf32> -> tensor<8x2x3xf32>
// CHECK: graph.scatter_add {{.*}} (tensor<2x8x3xf32>, tensor<2x8xi64>) -> tensor<2x10x3xf32>
// CHECK-NOT: spmd.{{(all_to_all|all_gather|reduce_scatter)}}

// FEW: error: 'graph.gather' op has 4 tables, fewer than the 8 positions of axis "ep": use 2 or 4 positions

func.func @loss(%tables: tensor<4x10x3xf32> {graph.name = "tables", graph.role = "parameter"},
    %w: tensor<2x12xf32> {graph.name = "w", graph.role = "parameter"},
    %indices: tensor<8x4xi64> {graph.batch_dim = 0 : i64, graph.name = "indices", graph.role = "input"},
    %labels: tensor<8x2xf32> {graph.batch_dim = 0 : i64, graph.name = "labels", graph.role = "input"}) -> tensor<f32> {
  %own = graph.transpose %indices {permutation = array<i64: 1, 0>} : (tensor<8x4xi64>) -> tensor<4x8xi64>
  %rows = graph.gather %tables, %own {batch = 1 : i64, dim = 1 : i64} : (tensor<4x10x3xf32>, tensor<4x8xi64>) -> tensor<4x8x3xf32>
  %vectors = graph.transpose %rows {permutation = array<i64: 1, 0, 2>} : (tensor<4x8x3xf32>) -> tensor<8x4x3xf32>
  %flat = graph.reshape %vectors : (tensor<8x4x3xf32>) -> tensor<8x12xf32>
  %y = graph.linear %flat, %w : (tensor<8x12xf32>, tensor<2x12xf32>) -> tensor<8x2xf32>
  %z = graph.mul %y, %labels : (tensor<8x2xf32>, tensor<8x2xf32>) -> tensor<8x2xf32>
  %loss = graph.reduce sum %z {dims = array<i64: 0, 1>} : (tensor<8x2xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
