// RUN: cleave-opt %s --spmd-apply-recipes=mesh=dp=2 --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-verify --pipe-split-stages --pipe-recompute --pipe-schedule --pipe-verify | FileCheck %s --check-prefix=PARTS
// RUN: cleave-opt %s --spmd-apply-recipes=mesh=dp=2 --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --pipe-split-stages --pipe-schedule --exec-unroll-schedule | FileCheck %s --check-prefix=UNROLL

// A device holds its share of each micro-batch; what it holds of a whole is
// still known.
// PARTS: spmd.mesh @mesh <["mb" = 2, "dp" = 2]> sequential ["mb"]
// PARTS-LABEL: pipe.program @train(
// PARTS-SAME: %[[W:[a-z0-9]+]]: tensor<4xf32> {graph.name = "w", graph.role = "parameter"}
// PARTS-SAME: %[[X:[a-z0-9]+]]: tensor<6x4xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input", spmd.global_type = tensor<12x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {}]>}
// PARTS-SAME: tensor<6x4xf32> {graph.name = "out", spmd.global_type = tensor<12x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {}]>}

// Devices exchange the sums once, and not for each micro-batch.
// PARTS-LABEL: func.func private @train.F(
// PARTS-NOT: spmd.all_reduce
// PARTS-LABEL: func.func private @train.B(
// PARTS-NOT: spmd.all_reduce
// PARTS-LABEL: func.func private @train.R(
// PARTS: spmd.all_reduce sum %{{.*}} over @mesh {"dp"} : tensor<4xf32>
// PARTS-LABEL: func.func private @train.U(
// PARTS: spmd.all_reduce sum %{{.*}} over @mesh {"dp"} : tensor<f32>

// Where a sample lies depends on the device, and on the micro-batch.
// UNROLL-LABEL: exec.program @train(
// UNROLL: %[[STARTS:.*]] = exec.constant #exec.device_values<[0, 0, 6, 0] plus <@mesh, [{"dp"}, {}]> times[3]> -> tensor<2x2xi64>
// UNROLL: exec.view %[[STARTS]] : tensor<2x2xi64> -> tensor<2xi64>
// UNROLL: exec.view %[[STARTS]] : tensor<2x2xi64> -> tensor<2xi64, #exec.layout<[1], offset = 2>>
func.func @train(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                 %x: tensor<12x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64},
                 %rng: tensor<2xi64> {graph.name = "rng", graph.role = "rng"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<4xf32> {graph.updates = "w"}, tensor<12x4xf32> {graph.name = "out"}) {
  %d = graph.dropout %x, %rng {probability = 0.5 : f64, id = 3 : i64} : (tensor<12x4xf32>, tensor<2xi64>) -> tensor<12x4xf32>
  %y = graph.mul %d, %w : (tensor<12x4xf32>, tensor<4xf32>) -> tensor<12x4xf32>
  %s = graph.reduce sum %y {dims = array<i64: 0, 1>} : (tensor<12x4xf32>) -> tensor<f32>
  %seed = graph.seed %s : (tensor<f32>) -> tensor<f32>
  %dy = graph.mul %d, %seed : (tensor<12x4xf32>, tensor<f32>) -> tensor<12x4xf32>
  %dw = graph.reduce sum %dy {dims = array<i64: 0>} : (tensor<12x4xf32>) -> tensor<4xf32>
  %g = graph.gradient %dw of "w" : (tensor<4xf32>) -> tensor<4xf32>
  %w1 = graph.sub %w, %g : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %s, %w1, %y : tensor<f32>, tensor<4xf32>, tensor<12x4xf32>
}
