// RUN: cleave-opt %s --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-verify --pipe-split-stages --pipe-schedule --pipe-verify --split-input-file | FileCheck %s

// A mean: the count is known before forward, the sums accumulate, the check of
// the count stands in forward, and what the seed starts is backward.

// CHECK-LABEL: pipe.program @train(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<4x4xf32> {graph.name = "w", graph.role = "parameter"}
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<6x4xf32> {graph.batch_dim = 0 : i64
// CHECK-SAME: %[[M:[a-z0-9]+]]: tensor<6xf32>
// CHECK-SAME: %[[LR:[a-z0-9]+]]: tensor<f32>
// CHECK-SAME: -> (tensor<f32> {graph.name = "loss"}, tensor<4x4xf32> {graph.updates = "w"}, tensor<6x4xf32>)
// CHECK-SAME: attributes {micro_batches = 2 : i64, pipe.optimizer_fusion = "none: each gradient is complete only with the last of 2 micro-batches{{.*}}", schedule = "P0 P1 F0 B0 F1 B1 U"}
// CHECK: %[[N:.*]] = pipe.invoke @train.P(%[[M]]) {part = "P", split = array<i64: 0>, results = ["accumulate"]} : (tensor<6xf32>) -> tensor<f32>
// CHECK: %[[F:.*]]:3 = pipe.invoke @train.F(%[[W]], %[[X]], %[[N]]) {part = "F", split = array<i64: -1, 0, -1>, results = ["concat:0", "saved", "accumulate"]}
// CHECK-SAME: -> (tensor<6x4xf32>, tensor<3x4xf32>, tensor<f32>)
// CHECK: %[[B:.*]] = pipe.invoke @train.B(%[[X]], %[[F]]#1, %[[N]]) {part = "B", split = array<i64: 0, -1, -1>, results = ["accumulate"]}
// CHECK: %[[U:.*]] = pipe.invoke @train.U(%[[W]], %[[LR]], %[[B]]) {part = "U", once, split = array<i64: -1, -1, -1>, results = ["value"]}
// CHECK: pipe.return %[[F]]#2, %[[U]], %[[F]]#0

// CHECK-LABEL: func.func private @train.P(
// CHECK-NEXT: graph.reduce sum
// CHECK-NEXT: return

// CHECK-LABEL: func.func private @train.F(
// CHECK: graph.contract
// CHECK: graph.tanh
// CHECK-NOT: graph.seed
// CHECK: graph.check
// CHECK: graph.div
// CHECK: return

// The loss is not saved for the sake of its seed.
// CHECK-LABEL: func.func private @train.B(
// CHECK: %[[ZERO:.*]] = graph.constant dense<0.000000e+00> : tensor<f32>
// CHECK: graph.seed %[[ZERO]]
// CHECK: graph.contract "bo,bi->oi"
// CHECK-NOT: graph.gradient
// CHECK: return

// CHECK-LABEL: func.func private @train.U(
// CHECK: graph.gradient
// CHECK: graph.sub
func.func @train(%w: tensor<4x4xf32> {graph.name = "w", graph.role = "parameter"},
                 %x: tensor<6x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64},
                 %m: tensor<6xf32> {graph.name = "m", graph.role = "input", graph.batch_dim = 0 : i64},
                 %lr: tensor<f32> {graph.name = "lr", graph.role = "scalar"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<4x4xf32> {graph.updates = "w"}, tensor<6x4xf32>) {
  %zero = graph.constant dense<0.0> : tensor<f32>
  %h = graph.contract "bi,oi->bo" %x, %w : (tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
  %t = graph.tanh %h : (tensor<6x4xf32>) -> tensor<6x4xf32>
  %s = graph.reduce sum %t {dims = array<i64: 0, 1>} : (tensor<6x4xf32>) -> tensor<f32>
  %n = graph.reduce sum %m {dims = array<i64: 0>} : (tensor<6xf32>) -> tensor<f32>
  %ok = graph.compare ne %n, %zero : (tensor<f32>, tensor<f32>) -> tensor<i1>
  graph.check %ok, "no samples" : tensor<i1>
  %loss = graph.div %s, %n : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %seed = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  %ds = graph.div %seed, %n : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %dt = graph.mul %t, %ds : (tensor<6x4xf32>, tensor<f32>) -> tensor<6x4xf32>
  %dw = graph.contract "bo,bi->oi" %dt, %x : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
  %g = graph.gradient %dw of "w" : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %step = graph.mul %g, %lr : (tensor<4x4xf32>, tensor<f32>) -> tensor<4x4xf32>
  %w1 = graph.sub %w, %step : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %loss, %w1, %h : tensor<f32>, tensor<4x4xf32>, tensor<6x4xf32>
}

// -----

// Without a seed there is forward alone; what is made of a finished sum runs
// once, at the end; what does not depend on the samples too.

// CHECK-LABEL: pipe.program @evaluate(
// CHECK-SAME: schedule = "F0 F1 U"
// CHECK: %[[F:.*]] = pipe.invoke @evaluate.F({{.*}}results = ["accumulate"]
// CHECK: %[[U:.*]]:2 = pipe.invoke @evaluate.U(%{{.*}}, %[[F]]) {part = "U", once, {{.*}}results = ["value", "value"]}
// CHECK: pipe.return %[[U]]#0, %[[U]]#1, %{{.*}} : tensor<f32>, tensor<4xf32>, tensor<4xf32>
// CHECK-LABEL: func.func private @evaluate.F(
// CHECK-NOT: graph.exp
// CHECK: return
// CHECK-LABEL: func.func private @evaluate.U(
// CHECK: graph.exp
func.func @evaluate(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                    %x: tensor<6x4xf32> {graph.batch_dim = 0 : i64}) -> (tensor<f32>, tensor<4xf32>, tensor<4xf32>) {
  %p = graph.mul %x, %w : (tensor<6x4xf32>, tensor<4xf32>) -> tensor<6x4xf32>
  %s = graph.reduce sum %p {dims = array<i64: 0, 1>} : (tensor<6x4xf32>) -> tensor<f32>
  %e = graph.exp %s : (tensor<f32>) -> tensor<f32>
  %n = graph.neg %w : (tensor<4xf32>) -> tensor<4xf32>
  return %e, %n, %w : tensor<f32>, tensor<4xf32>, tensor<4xf32>
}

// -----

// Maxima and minima of micro-batches accumulate too. One that a micro-batch
// reads, of inputs, is in the prologue.

// CHECK-LABEL: pipe.program @extremes(
// CHECK: %[[P:.*]] = pipe.invoke @extremes.P({{.*}}) {part = "P", split = array<i64: 0>, results = ["accumulate:max"]}
// CHECK: %[[F:.*]]:3 = pipe.invoke @extremes.F({{.*}}) {part = "F", split = array<i64: -1, 0, -1>, results = ["concat:0", "accumulate:max", "accumulate:min"]}
// CHECK: %[[U:.*]]:2 = pipe.invoke @extremes.U({{.*}}%[[F]]#1, %[[F]]#2) {part = "U", once, {{.*}} results = ["value", "value"]}
// CHECK: pipe.return %[[F]]#0, %[[U]]#0, %[[U]]#1

// CHECK-LABEL: func.func private @extremes.F(
// CHECK-DAG: graph.reduce max {{.*}} : (tensor<3x4xf32>) -> tensor<4xf32>
// CHECK-DAG: graph.reduce min {{.*}} : (tensor<3x4xf32>) -> tensor<4xf32>
// CHECK: return
func.func @extremes(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                    %x: tensor<6x4xf32> {graph.batch_dim = 0 : i64},
                    %m: tensor<4xf32> {graph.name = "m", graph.role = "buffer"},
                    %n: tensor<4xf32> {graph.name = "n", graph.role = "buffer"})
    -> (tensor<6x4xf32>, tensor<4xf32> {graph.updates = "m"}, tensor<4xf32> {graph.updates = "n"}) {
  %p = graph.reduce max %x {dims = array<i64: 0>} : (tensor<6x4xf32>) -> tensor<4xf32>
  %a = graph.mul %x, %w : (tensor<6x4xf32>, tensor<4xf32>) -> tensor<6x4xf32>
  %b = graph.sub %a, %p : (tensor<6x4xf32>, tensor<4xf32>) -> tensor<6x4xf32>
  %most = graph.reduce max %b {dims = array<i64: 0>} : (tensor<6x4xf32>) -> tensor<4xf32>
  %least = graph.reduce min %b {dims = array<i64: 0>} : (tensor<6x4xf32>) -> tensor<4xf32>
  %m1 = graph.add %m, %most : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %n1 = graph.add %n, %least : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %m2 = graph.written %m1 of "m" : (tensor<4xf32>) -> tensor<4xf32>
  %n2 = graph.written %n1 of "n" : (tensor<4xf32>) -> tensor<4xf32>
  return %b, %m2, %n2 : tensor<6x4xf32>, tensor<4xf32>, tensor<4xf32>
}
