// RUN: cleave-opt %s --pipe-post-validate | FileCheck %s
// RUN: cleave-opt %s --pipe-post-validate --pipe-schedule --pipe-verify | FileCheck %s --check-prefix=ORDER
// RUN: cleave-opt %s --pipe-post-validate --pipe-schedule --exec-unroll-schedule | FileCheck %s --check-prefix=EXEC

// A clip: each stage has the square of its own gradient, and reads both. What it
// scales by is validated, and what it reports is made, when both are there.

// CHECK-LABEL: pipe.program @train(
// CHECK-SAME: pipe.post_validated
// CHECK: %[[N0:.*]] = pipe.invoke @train.N(
// CHECK: %[[N1:.*]] = pipe.invoke @train.1N(
// Own squares alone.
// CHECK: %[[U0:.*]]:2 = pipe.invoke @train.U(%[[W:.*]], %[[G0:.*]], %[[N0]]) {part = "U", once,
// CHECK: %[[U1:.*]]:2 = pipe.invoke @train.1U(%[[V:.*]], %[[G1:.*]], %[[N1]]) {part = "U", stage = 1, once,
// What validates stands before all that is made again.
// CHECK: %[[V0:.*]]:2 = pipe.invoke @train.V(%[[N0]], %[[N1]], %[[U0]]#1) {part = "V", once,
// CHECK: %[[V1:.*]] = pipe.invoke @train.1V(%[[N0]], %[[N1]], %[[U1]]#1) {part = "V", stage = 1, once,
// CHECK: %[[A0:.*]] = pipe.invoke @train.A(%[[W]], %[[G0]], %[[N0]], %[[N1]], %[[V0]]#1, %[[U0]]#0) {part = "A", once, {{.*}}unless = array<i64: 4, 5>}
// CHECK: %[[A1:.*]] = pipe.invoke @train.1A(%[[V]], %[[G1]], %[[N0]], %[[N1]], %[[V1]], %[[U1]]#0) {part = "A", stage = 1, once, {{.*}}unless = array<i64: 4, 5>}
// CHECK: pipe.return %[[V0]]#0, %[[A0]], %[[A1]]

// The update assumes that the other stage gives 0, and checks nothing.
// CHECK-LABEL: func.func private @train.U(
// CHECK-SAME: %[[W:.*]]: tensor<4xf32>, %[[G:.*]]: tensor<4xf32>, %[[N:.*]]: tensor<f32>)
// CHECK: %[[ZERO:.*]] = graph.constant dense<0.000000e+00> : tensor<f32>
// CHECK: %[[SUM:.*]] = graph.add %[[N]], %[[ZERO]]
// CHECK: %[[SCALE:.*]] = graph.minimum
// CHECK-NOT: graph.check
// CHECK: %[[D:.*]] = graph.mul %[[G]], %[[SCALE]]
// CHECK: %[[NEW:.*]] = graph.sub %[[W]], %[[D]]
// CHECK: return %[[NEW]], %[[SCALE]]

// A zero could be of the other sign.
// CHECK-LABEL: func.func private @train.V(
// CHECK-SAME: %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>, %[[ASSUMED:.*]]: tensor<f32>)
// CHECK: %[[SUM:.*]] = graph.add %[[A]], %[[B]]
// CHECK: %[[NORM:.*]] = graph.sqrt %[[SUM]]
// CHECK: graph.check
// CHECK: %[[SCALE:.*]] = graph.minimum
// CHECK: %[[SAME:.*]] = graph.compare eq %[[SCALE]], %[[ASSUMED]]
// CHECK: %[[SET:.*]] = graph.compare ne %[[SCALE]],
// CHECK: %[[RIGHT:.*]] = graph.and %[[SAME]], %[[SET]]
// CHECK: return %[[NORM]], %[[RIGHT]]

// CHECK-LABEL: func.func private @train.A(
// CHECK-SAME: %[[W:.*]]: tensor<4xf32>, %[[G:.*]]: tensor<4xf32>, %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>, %{{.*}}: tensor<i1>, %{{.*}}: tensor<4xf32>) -> tensor<4xf32>
// CHECK-NOT: graph.check
// CHECK: graph.sub %[[W]],

// No update waits: norms are exchanged behind them.
// ORDER: schedule = "F0 F0>1 N U N>1 0<1N V A | 1<F0 1F0 1N 1U 1<N 1N>0 1V 1A"

// What the update overwrites is kept: for a step that is stopped, and for the
// update that is made again.
// EXEC-LABEL: exec.program @train.0(
// EXEC-SAME: %[[W:[^:]*]]: tensor<4xf32> {graph.name = "w"
// EXEC: %[[OLD:.*]] = exec.run @train.keep.0.0(%[[W]])
// EXEC: %[[U:.*]]:2 = exec.run @train.U(%[[W]],
// EXEC: %[[V:.*]]:2 = exec.run @train.V(
// EXEC: exec.run @train.stop.0()
// EXEC: %[[BACK:.*]] = exec.run @train.restore.0(%[[OLD]], %[[U]]#0)
// EXEC: %[[A:.*]] = exec.run @train.A(%[[OLD]], {{.*}}, %[[V]]#1, %[[BACK]])
// EXEC: exec.return {{.*}}%[[A]]
// EXEC-DAG: func.func private @train.A({{.*}}tensor<i1> {exec.unless}, %{{.*}}: tensor<4xf32> {exec.dies}) -> (tensor<4xf32> {exec.alias = 5 : i64, exec.update})
// EXEC-DAG: func.func private @train.restore.0(%{{.*}}: tensor<4xf32>, %{{.*}}: tensor<4xf32> {exec.dies}) -> (tensor<4xf32> {exec.alias = 1 : i64}) attributes {exec.when_stopped}

spmd.mesh @mesh <["pp" = 2]>
pipe.program @train(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                    %v: tensor<4xf32> {graph.name = "v", graph.role = "parameter"})
    -> (tensor<f32> {graph.name = "norm"}, tensor<4xf32> {graph.updates = "w"},
        tensor<4xf32> {graph.updates = "v"})
    attributes {micro_batches = 1 : i64, pipe.stages = 2 : i64} {
  %g0 = pipe.invoke @train.F(%w) {part = "F", split = array<i64: -1>, results = ["accumulate"]}
      : (tensor<4xf32>) -> tensor<4xf32>
  %g1 = pipe.invoke @train.1F(%v, %g0) {part = "F", stage = 1, split = array<i64: -1, -1>, results = ["accumulate"]}
      : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %n0 = pipe.invoke @train.N(%g0) {part = "N", once, split = array<i64: -1>, results = ["value"]}
      : (tensor<4xf32>) -> tensor<f32>
  %n1 = pipe.invoke @train.1N(%g1) {part = "N", stage = 1, once, split = array<i64: -1>, results = ["value"]}
      : (tensor<4xf32>) -> tensor<f32>
  %w2, %norm = pipe.invoke @train.U(%w, %g0, %n0, %n1)
      {part = "U", once, split = array<i64: -1, -1, -1, -1>, results = ["value", "value"]}
      : (tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>) -> (tensor<4xf32>, tensor<f32>)
  %v2 = pipe.invoke @train.1U(%v, %g1, %n0, %n1)
      {part = "U", stage = 1, once, split = array<i64: -1, -1, -1, -1>, results = ["value"]}
      : (tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>) -> tensor<4xf32>
  pipe.return %norm, %w2, %v2 : tensor<f32>, tensor<4xf32>, tensor<4xf32>
}
func.func private @train.F(%w: tensor<4xf32>) -> tensor<4xf32> {
  %0 = graph.exp %w : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @train.1F(%v: tensor<4xf32>, %x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = graph.mul %v, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @train.N(%g: tensor<4xf32>) -> tensor<f32> {
  %0 = graph.mul %g, %g : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}
func.func private @train.1N(%g: tensor<4xf32>) -> tensor<f32> {
  %0 = graph.mul %g, %g : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}
func.func private @train.U(%w: tensor<4xf32>, %g: tensor<4xf32>, %a: tensor<f32>, %b: tensor<f32>)
    -> (tensor<4xf32>, tensor<f32>) {
  %one = graph.constant dense<1.0> : tensor<f32>
  %infinite = graph.constant dense<0x7F800000> : tensor<f32>
  %sum = graph.add %a, %b : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %norm = graph.sqrt %sum : (tensor<f32>) -> tensor<f32>
  %finite = graph.compare lt %norm, %infinite : (tensor<f32>, tensor<f32>) -> tensor<i1>
  graph.check %finite, "the norm is not finite" : tensor<i1>
  %factor = graph.div %one, %norm : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %scale = graph.minimum %factor, %one : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %d = graph.mul %g, %scale : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %new = graph.sub %w, %d : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %new, %norm : tensor<4xf32>, tensor<f32>
}
func.func private @train.1U(%w: tensor<4xf32>, %g: tensor<4xf32>, %a: tensor<f32>, %b: tensor<f32>)
    -> tensor<4xf32> {
  %one = graph.constant dense<1.0> : tensor<f32>
  %sum = graph.add %a, %b : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %norm = graph.sqrt %sum : (tensor<f32>) -> tensor<f32>
  %factor = graph.div %one, %norm : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %scale = graph.minimum %factor, %one : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %d = graph.mul %g, %scale : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %new = graph.sub %w, %d : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %new : tensor<4xf32>
}
