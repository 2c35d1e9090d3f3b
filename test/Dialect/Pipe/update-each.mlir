// RUN: cleave-opt %s --spmd-apply-recipes=mesh=pp=2 --spmd-seed-shardings --spmd-propagate --spmd-partition --spmd-verify --pipe-split-stages=stages=v --pipe-update-each=micro-batches=3 > %t
// RUN: FileCheck %s --input-file %t
// RUN: cleave-opt %t --pipe-schedule=kind=pipedream --pipe-verify | FileCheck %s --check-prefix=ORDER
// RUN: not cleave-opt %t --pipe-schedule=kind=1f1b 2>&1 | FileCheck %s --check-prefix=FLUSH
// RUN: not cleave-opt %s --spmd-apply-recipes=mesh=pp=2 --spmd-seed-shardings --spmd-propagate --spmd-partition --pipe-split-stages=stages=v --pipe-schedule=kind=pipedream 2>&1 | FileCheck %s --check-prefix=ONCE
// RUN: cleave-opt %t --pipe-schedule="kind=pipedream max-staleness=0" --exec-unroll-schedule | FileCheck %s --check-prefix=INPLACE
// RUN: cleave-opt %t --pipe-schedule=kind=pipedream --exec-unroll-schedule | FileCheck %s --check-prefix=VERSIONS

// Micro-batches lie side by side, on an axis of their own. Each has its update,
// which makes a version of what it updates; the loss is a mean.
// CHECK: spmd.mesh @mesh <["updates" = 3, "mb" = 1, "pp" = 2]> sequential ["updates", "mb"]
// CHECK: pipe.program @train(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<18x4xf32>
// CHECK-SAME: micro_batches = 3 : i64
// A check of inputs comes first.
// CHECK: pipe.invoke @train.{{.*}}.check(%[[X]]) {part = "P", {{.*}}split = array<i64: 0>, results = []}
// CHECK: pipe.invoke @train.F({{.*}} {part = "F", split = array<i64: -1, 0>
// CHECK: pipe.invoke @train.1F({{.*}}results = [{{.*}}"accumulate"{{.*}}]
// CHECK: pipe.invoke @train.1B({{.*}}results = ["saved", "saved"]
// CHECK: pipe.invoke @train.B({{.*}}results = ["saved"]
// CHECK: pipe.invoke @train.U({{.*}} {part = "U", split = array<i64: -1, -1, -1, -1>, results = ["version:0"]}
// CHECK: pipe.invoke @train.1U({{.*}} {part = "U", stage = 1, split = array<i64: -1, -1, -1, -1>, results = ["version:1"]}

// The number of a step is that of the micro-batch.
// CHECK-LABEL: func.func private @train.U(
// CHECK: spmd.shard_offset <@mesh, {{\[}}{"updates"}]> of tensor<3xi64> : tensor<1xi64>

// ORDER: schedule = "{{.*}}P0{{.*}}F0 F0>1} 0<1B0 B0 U0 F2
// FLUSH: error: 'pipe.program' op schedule: '1f1b' updates after all micro-batches, and the parts of this program after each of them

// ONCE: error: 'pipe.program' op schedule: 'pipedream' updates after each micro-batch, and the parts of this program after all of them; run --pipe-update-each first

// One after another, each update is made where the parameter lies.
// INPLACE: exec.program @train.0(%[[W:[a-z0-9]+]]: tensor<4x4xf32>
// INPLACE: exec.run @train.F(%[[W]],
// INPLACE: %[[W1:.*]] = exec.run @train.U(%[[W]],
// INPLACE: exec.run @train.F(%[[W1]],
// INPLACE: %[[W2:.*]] = exec.run @train.U(%[[W1]],
// INPLACE: exec.run @train.F(%[[W2]],
// INPLACE: exec.run @train.U(%[[W2]],
// INPLACE: func.func private @train.U(%{{.*}}: tensor<4x4xf32> {exec.dies},
// INPLACE-SAME: -> (tensor<4x4xf32> {exec.alias = 0 : i64, exec.update})

// Two versions at a time: forward of the second micro-batch, and its backward,
// read the first one, which keeps its place; the third forward reads the next.
// Then nothing needs the first any more, and the last update is made there.
// VERSIONS: exec.program @train.0(%[[W:[a-z0-9]+]]: tensor<4x4xf32>
// VERSIONS: exec.run @train.F(%[[W]], {{.*}}micro_batch = 0
// VERSIONS: exec.run @train.F(%[[W]], {{.*}}micro_batch = 1
// VERSIONS: %[[W1:.*]] = exec.run @train.U(%[[W]], {{.*}}micro_batch = 0
// VERSIONS: exec.run @train.F(%[[W1]], {{.*}}micro_batch = 2
// VERSIONS: %[[W2:.*]] = exec.run @train.U.form1(%[[W1]], {{.*}}, %[[W]]) {micro_batch = 1
// VERSIONS: %[[W3:.*]] = exec.run @train.U.form2(%[[W2]], {{.*}}micro_batch = 2
// VERSIONS: exec.return %[[W3]]
func.func @train(%w: tensor<4x4xf32> {graph.name = "w", graph.role = "parameter"},
                 %v: tensor<4x4xf32> {graph.name = "v", graph.role = "parameter"},
                 %x: tensor<6x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64},
                 %lr: tensor<f32> {graph.name = "lr", graph.role = "scalar"},
                 %step: tensor<i64> {graph.name = "step", graph.role = "scalar"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<4x4xf32> {graph.updates = "w"}, tensor<4x4xf32> {graph.updates = "v"}) {
  %count = graph.reduce sum %x {dims = array<i64: 0, 1>} : (tensor<6x4xf32>) -> tensor<f32>
  %zero = graph.constant dense<0.0> : tensor<f32>
  %some = graph.compare ne %count, %zero : (tensor<f32>, tensor<f32>) -> tensor<i1>
  graph.check %some, "nothing" : tensor<i1>
  %h = graph.contract "bi,oi->bo" %x, %w : (tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
  %t = graph.tanh %h : (tensor<6x4xf32>) -> tensor<6x4xf32>
  %k = graph.contract "bi,oi->bo" %t, %v : (tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
  %q = graph.mul %k, %k : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<6x4xf32>
  %loss = graph.reduce sum %q {dims = array<i64: 0, 1>} : (tensor<6x4xf32>) -> tensor<f32>
  %seed = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  %dk = graph.mul %k, %seed : (tensor<6x4xf32>, tensor<f32>) -> tensor<6x4xf32>
  %dt = graph.contract "bo,oi->bi" %dk, %v : (tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
  %dv = graph.contract "bo,bi->oi" %dk, %t : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
  %dh = graph.contract "bi,oi->bo" %dt, %w : (tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
  %dw = graph.contract "bo,bi->oi" %dh, %x : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
  %gw = graph.gradient %dw of "w" : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %gv = graph.gradient %dv of "v" : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %number = graph.cast %step : (tensor<i64>) -> tensor<f32>
  %rate = graph.div %lr, %number : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %ew = graph.mul %gw, %rate : (tensor<4x4xf32>, tensor<f32>) -> tensor<4x4xf32>
  %ev = graph.mul %gv, %rate : (tensor<4x4xf32>, tensor<f32>) -> tensor<4x4xf32>
  %w1 = graph.sub %w, %ew : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %v1 = graph.sub %v, %ev : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %loss, %w1, %v1 : tensor<f32>, tensor<4x4xf32>, tensor<4x4xf32>
}
