// RUN: cleave-opt %s --spmd-apply-recipes=mesh=pp=2 --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-verify --pipe-split-stages=stages=v --pipe-schedule --pipe-verify | FileCheck %s

// Two layers, of which the second begins a stage; the first weight is read behind
// the second, too, and the update divides by the norm of all gradients.

// CHECK-LABEL: pipe.program @train(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<4x4xf32> {graph.name = "w"
// CHECK-SAME: %[[V:[a-z0-9]+]]: tensor<4x4xf32> {graph.name = "v"
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<6x4xf32>
// The second holder of the weight updates it alike.
// CHECK-SAME: -> (tensor<f32> {graph.name = "loss"}, tensor<4x4xf32> {graph.updates = "w"}, tensor<4x4xf32> {graph.updates = "v"}, tensor<4x4xf32> {graph.updates = "w", pipe.copy = 1 : i64})
// CHECK-SAME: pipe.stages = 2 : i64, schedule = "{2+1: F0 F0>1} {2+1: 0<1B0 B0} 0<1N B1>1 N N>1 U | 1<F0 1F0 1<F1 1B0 1B0>0 1F1 1B1 1B1>0 1N 1N>0 1<B1 1<N 1U", stage_map = "modular"

// One value goes on, and one gradient back.
// CHECK: %[[F:.*]]:2 = pipe.invoke @train.F(%[[W]], %[[X]]) {part = "F", split = array<i64: -1, 0>, results = ["saved", "saved"]}
// CHECK: %[[F1:.*]]:{{.*}} = pipe.invoke @train.1F(%[[W]], %[[V]], %[[F]]#1) {part = "F", stage = 1,
// CHECK: %[[B1:.*]]:3 = pipe.invoke @train.1B({{.*}}) {part = "B", stage = 1, {{.*}} results = ["accumulate", "saved", "accumulate"]}
// CHECK: %[[B:.*]] = pipe.invoke @train.B(%[[X]], %[[F]]#0, %[[B1]]#1) {part = "B", {{.*}} results = ["accumulate"]}

// What each use of the weight gave is added up once; the squares are summed in
// one stage for all, and added up from the last stage to the first.
// CHECK: %[[N1:.*]] = pipe.invoke @train.1N(%[[B1]]#2) {part = "N", stage = 1, once,
// CHECK: %[[N:.*]] = pipe.invoke @train.N(%[[B1]]#0, %[[B]], %[[N1]]) {part = "N", once,
// CHECK: %[[U:.*]] = pipe.invoke @train.U(%[[W]], {{.*}}%[[B1]]#0, %[[B]], %[[N]]) {part = "U", once,
// CHECK: %[[U1:.*]]:2 = pipe.invoke @train.1U(%[[W]], %[[V]], {{.*}}%[[B1]]#2, %[[B1]]#0, %[[B]], %[[N]]) {part = "U", stage = 1, once,
// CHECK: pipe.return %[[F1]]#2, %[[U]], %[[U1]]#1, %[[U1]]#0

// CHECK-LABEL: func.func private @train.F(
// CHECK: graph.contract
// CHECK: graph.tanh
// CHECK-NOT: graph.contract
// CHECK-LABEL: func.func private @train.1F(
// CHECK-COUNT-2: graph.contract
// CHECK-LABEL: func.func private @train.1B(
// CHECK: graph.seed
// CHECK-LABEL: func.func private @train.B(
// CHECK-NOT: graph.seed
// CHECK-LABEL: func.func private @train.N(
// CHECK: graph.add
// CHECK: %[[SUM:.*]] = graph.reduce sum
// CHECK-NEXT: %[[TOTAL:.*]] = graph.add %[[SUM]], %arg2
// CHECK-NEXT: return %[[TOTAL]]
func.func @train(%w: tensor<4x4xf32> {graph.name = "w", graph.role = "parameter"},
                 %v: tensor<4x4xf32> {graph.name = "v", graph.role = "parameter"},
                 %x: tensor<6x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64},
                 %lr: tensor<f32> {graph.name = "lr", graph.role = "scalar"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<4x4xf32> {graph.updates = "w"}, tensor<4x4xf32> {graph.updates = "v"}) {
  %h = graph.contract "bi,oi->bo" %x, %w : (tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
  %t = graph.tanh %h : (tensor<6x4xf32>) -> tensor<6x4xf32>
  %k = graph.contract "bi,oi->bo" %t, %v : (tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
  %y = graph.contract "bi,oi->bo" %k, %w : (tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
  %q = graph.mul %y, %y : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<6x4xf32>
  %loss = graph.reduce sum %q {dims = array<i64: 0, 1>} : (tensor<6x4xf32>) -> tensor<f32>
  %seed = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  %dy = graph.mul %y, %seed : (tensor<6x4xf32>, tensor<f32>) -> tensor<6x4xf32>
  %dk = graph.contract "bo,oi->bi" %dy, %w : (tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
  %dw2 = graph.contract "bo,bi->oi" %dy, %k : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
  %dt = graph.contract "bo,oi->bi" %dk, %v : (tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
  %dv = graph.contract "bo,bi->oi" %dk, %t : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
  %dh = graph.mul %dt, %h : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<6x4xf32>
  %dw1 = graph.contract "bo,bi->oi" %dh, %x : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
  %dw = graph.add %dw2, %dw1 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %gw = graph.gradient %dw of "w" : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %gv = graph.gradient %dv of "v" : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %sw = graph.mul %gw, %gw : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %sv = graph.mul %gv, %gv : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %nw = graph.reduce sum %sw {dims = array<i64: 0, 1>} : (tensor<4x4xf32>) -> tensor<f32>
  %nv = graph.reduce sum %sv {dims = array<i64: 0, 1>} : (tensor<4x4xf32>) -> tensor<f32>
  %n = graph.add %nw, %nv : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %scale = graph.div %lr, %n : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %ew = graph.mul %gw, %scale : (tensor<4x4xf32>, tensor<f32>) -> tensor<4x4xf32>
  %ev = graph.mul %gv, %scale : (tensor<4x4xf32>, tensor<f32>) -> tensor<4x4xf32>
  %w1 = graph.sub %w, %ew : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %v1 = graph.sub %v, %ev : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %loss, %w1, %v1 : tensor<f32>, tensor<4x4xf32>, tensor<4x4xf32>
}
