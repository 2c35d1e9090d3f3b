// RUN: cleave-opt %s --spmd-seed-shardings=micro-batches=100 --spmd-propagate --spmd-partition --pipe-split-stages --pipe-recompute --pipe-schedule --exec-unroll-schedule | FileCheck %s
// RUN: cleave-opt %s --spmd-seed-shardings=micro-batches=100 --spmd-propagate --spmd-partition --pipe-split-stages --pipe-recompute --pipe-schedule --exec-unroll-schedule=write-out | FileCheck %s --check-prefix=ALL

// Of 100 micro-batches, those that show what comes in turn are written out; what
// follows them is of a later micro-batch. Slices are those of the list.
// CHECK-LABEL: exec.program @train(
// CHECK-SAME: repeats = [#exec.repeat<first = {{[0-9]+}}, length = 2, times = {{[0-9]+}}, more = 84, step = 1>]
// CHECK: exec.run @train.B(%{{.*}}) {micro_batch = 0 : i64}
// CHECK: exec.run @train.B.next(%{{.*}}) {micro_batch = 1 : i64}
// CHECK: exec.run @train.B.next(%{{.*}}) {micro_batch = 14 : i64}
// CHECK-NOT: micro_batch = 16
// CHECK: exec.run @train.U(

// ALL-LABEL: exec.program @train(
// ALL-NOT: repeats
// ALL: exec.run @train.B.next(%{{.*}}) {micro_batch = 99 : i64}
func.func @train(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                 %x: tensor<100x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64})
    -> (tensor<f32> {graph.name = "loss"}, tensor<4xf32> {graph.updates = "w"}) {
  %e = graph.exp %w : (tensor<4xf32>) -> tensor<4xf32>
  %t = graph.mul %x, %e : (tensor<100x4xf32>, tensor<4xf32>) -> tensor<100x4xf32>
  %y = graph.tanh %t : (tensor<100x4xf32>) -> tensor<100x4xf32>
  %s = graph.reduce sum %y {dims = array<i64: 0, 1>} : (tensor<100x4xf32>) -> tensor<f32>
  %seed = graph.seed %s : (tensor<f32>) -> tensor<f32>
  %dy = graph.mul %y, %seed : (tensor<100x4xf32>, tensor<f32>) -> tensor<100x4xf32>
  %dw = graph.reduce sum %dy {dims = array<i64: 0>} : (tensor<100x4xf32>) -> tensor<4xf32>
  %g = graph.gradient %dw of "w" : (tensor<4xf32>) -> tensor<4xf32>
  %w1 = graph.sub %w, %g : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %s, %w1 : tensor<f32>, tensor<4xf32>
}
