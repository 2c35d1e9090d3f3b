// RUN: cleave-opt %s --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --pipe-split-stages --pipe-schedule | FileCheck %s
// RUN: cleave-opt %s --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --pipe-split-stages --pipe-schedule --exec-unroll-schedule | FileCheck %s --check-prefix=EXEC
// RUN: cleave-opt %s --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --pipe-split-stages --pipe-schedule --exec-unroll-schedule --exec-decompose --exec-fold-views --exec-select-kernels --exec-assign-layouts --exec-fuse --exec-plan-memory | FileCheck %s --check-prefix=PLAN

// A value that updates two arguments is two results, each in a place of its own.

// CHECK-LABEL: pipe.program @train(
// CHECK: %[[U:.*]]:2 = pipe.invoke @train.U({{.*}} results = ["value", "value"]
// CHECK-NEXT: pipe.return %{{.*}}, %[[U]]#0, %[[U]]#1

// EXEC: func.func private @train.U(%{{.*}}: tensor<8x8xf32> {exec.dies}, %{{.*}}: tensor<8x8xf32>, %{{.*}}: tensor<8x8xf32> {exec.dies}) -> (tensor<8x8xf32> {exec.alias = 0 : i64, exec.update}, tensor<8x8xf32> {exec.alias = 2 : i64, exec.update})

// PLAN: func.func private @train.U(
// PLAN-SAME: %arg2: tensor<8x8xf32> {exec.buffer = 2
// PLAN: %[[NEW:.*]] = exec.launch @add(%{{.*}}) {exec.buffers = array<i64: 0>
// PLAN: %[[COPY:.*]] = exec.copy %[[NEW]] {exec.buffers = array<i64: 2>}
// PLAN: return %[[NEW]], %[[COPY]]
func.func @train(%a: tensor<8x8xf32> {graph.name = "a", graph.role = "parameter"}, %b: tensor<8x8xf32> {graph.name = "b", graph.role = "parameter"},
  %x: tensor<4x8xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64}) -> (tensor<f32> {graph.name = "loss"}, tensor<8x8xf32> {graph.updates = "a"}, tensor<8x8xf32> {graph.updates = "b"}) {
  %y = graph.contract "bi,oi->bo" %x, %a : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %l = graph.reduce sum %y {dims = array<i64: 0, 1>} : (tensor<4x8xf32>) -> tensor<f32>
  %one = graph.constant dense<1.0> : tensor<f32>
  %s = graph.seed %one : (tensor<f32>) -> tensor<f32>
  %t = graph.mul %s, %y : (tensor<f32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %g = graph.contract "bo,bi->oi" %t, %x : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  %d = graph.gradient %g of "a" : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %n = graph.add %a, %d : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %l, %n, %n : tensor<f32>, tensor<8x8xf32>, tensor<8x8xf32>
}
