// RUN: cleave-opt %s --spmd-apply-recipes=mesh=dp=2 --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-verify --pipe-split-stages --pipe-recompute --pipe-schedule --pipe-verify | FileCheck %s

// Backward reads two cheap values that are made of a sum over the devices: they
// are computed again, of the sum that is saved, though all of what it is made of
// is cheap.
// CHECK: pipe.program @train(
// CHECK: pipe.invoke @train.F({{.*}}results = [{{.*}}"saved"
// CHECK-LABEL: func.func private @train.F(
// CHECK: %[[SUM:.*]] = spmd.all_reduce sum %{{.*}} over @mesh {"dp"} : tensor<4xf32>
// CHECK: return {{.*}}%[[SUM]]
// CHECK-LABEL: func.func private @train.B(
// CHECK-NOT: spmd.all_reduce sum %{{.*}} : tensor<4xf32>
// CHECK: graph.abs
// CHECK: return
func.func @train(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                 %x: tensor<8x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64})
    -> (tensor<f32> {graph.name = "loss"}, tensor<4x4xf32> {graph.name = "out"}) {
  %y = graph.mul %x, %w : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
  %m = graph.reduce sum %y {dims = array<i64: 0>} : (tensor<8x4xf32>) -> tensor<4xf32>
  %t = graph.tanh %m : (tensor<4xf32>) -> tensor<4xf32>
  %s = graph.reduce sum %t {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  %seed = graph.seed %s : (tensor<f32>) -> tensor<f32>
  %dt = graph.mul %t, %seed : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %e = graph.abs %m : (tensor<4xf32>) -> tensor<4xf32>
  %o = graph.contract "i,j->ij" %dt, %e : (tensor<4xf32>, tensor<4xf32>) -> tensor<4x4xf32>
  return %s, %o : tensor<f32>, tensor<4x4xf32>
}
