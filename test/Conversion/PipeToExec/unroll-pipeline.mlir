// RUN: cleave-opt %s --spmd-apply-recipes=mesh=pp=2 --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-verify --pipe-split-stages=stages=v --pipe-schedule --exec-unroll-schedule | FileCheck %s
// RUN: cleave-opt %s --spmd-apply-recipes=mesh=pp=2 --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-verify --pipe-split-stages=stages=v --pipe-schedule --exec-unroll-schedule | FileCheck %s --check-prefix=ACTION
// RUN: cleave-opt %s --spmd-apply-recipes=mesh=pp=2 --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-verify --pipe-split-stages=stages=v --pipe-schedule --exec-unroll-schedule | not grep -E '@train[^ ]*[.](sent|receive)([.]last)?[(].*exec.action'

// A program for each position, with what its stage holds alone. What is sent is
// waited for before the next thing is, and what is received is begun before the
// part ahead of its place, and waited for in front of its reader.

// CHECK-LABEL: exec.program @train.0(
// CHECK-SAME: graph.name = "w"
// CHECK-NOT: graph.name = "v"
// CHECK-SAME: graph.name = "x"
// CHECK-SAME: -> (tensor<4x4xf32> {graph.updates = "w"})
// CHECK-SAME: entry = "train"
// CHECK-SAME: position = 0 : i64
// CHECK: %[[F0:.*]]:2 = exec.run @train.F(
// CHECK-NEXT: exec.run @train.F.1.send(%[[F0]]#1) {micro_batch = 0
// CHECK: %[[B0:.*]] = exec.run @train.1B.0.receive() {micro_batch = 0
// CHECK-NEXT: %[[F1:.*]]:2 = exec.run @train.F(
// CHECK-NEXT: exec.run @train.F.1.sent(%[[F0]]#1) {micro_batch = 0
// CHECK-NEXT: exec.run @train.F.1.send(%[[F1]]#1) {micro_batch = 1
// CHECK-NEXT: exec.run @train.1B.0.received(%[[B0]]) {micro_batch = 0
// With the last micro-batch come sums: the other use of the weight.
// CHECK: %[[B1:.*]]:2 = exec.run @train.1B.0.receive.last() {micro_batch = 1
// CHECK: %[[G0:.*]] = exec.run @train.B({{.*}}, %[[F0]]#0, %[[B0]]) {micro_batch = 0
// CHECK: exec.run @train.1B.0.received.last(%[[B1]]#0, %[[B1]]#1) {micro_batch = 1
// CHECK: %[[G1:.*]] = exec.run @train.B.next({{.*}}, %[[F1]]#0, %[[B1]]#1, %[[G0]]) {micro_batch = 1
// CHECK: exec.run @train.B.1.send.last(%[[G1]])
// What runs once hides transfers as well; nothing is under way where the step
// may stop. The terms of the later stage are added to those of the first, which
// returns the sum.
// CHECK-NEXT: exec.run @train.1N.0.received(%[[T:[0-9]+]])
// CHECK-NEXT: %[[N:.*]] = exec.run @train.N({{.*}}, %[[G1]], %[[T]])
// CHECK-NEXT: exec.run @train.B.1.sent.last(%[[G1]])
// CHECK-NEXT: exec.run @train.N.1.send(%[[N]])
// CHECK-NEXT: exec.run @train.N.1.sent(%[[N]])
// CHECK-NEXT: exec.run @train.U(

// CHECK-LABEL: func.func private @train.F.1.send(
// CHECK-NEXT: exec.send %{{.*}} {to = 1 : i64, token = [[$TOKEN:[0-9]+]] : i64}
// CHECK-LABEL: func.func private @train.F.1.sent(
// CHECK-NEXT: exec.await %{{.*}} {{\[}}[[$TOKEN]]]

// CHECK-LABEL: exec.program @train.1(
// CHECK-SAME: graph.name = "w"
// CHECK-SAME: graph.name = "v"
// CHECK-NOT: graph.name = "x"
// CHECK-SAME: position = 1 : i64
// CHECK: %[[X0:.*]] = exec.run @train.F.1.receive() {micro_batch = 0
// CHECK-NEXT: exec.run @train.F.1.received(%[[X0]]) {micro_batch = 0
// CHECK-NEXT: %[[X1:.*]] = exec.run @train.F.1.receive() {micro_batch = 1
// CHECK-NEXT: %[[Y0:.*]]:3 = exec.run @train.1F({{.*}}, %[[X0]]) {micro_batch = 0
// What stands in front of its reader does not wait for it.
// CHECK-NEXT: %[[D0:.*]]:{{[0-9]}} = exec.run @train.1B(
// CHECK-NEXT: exec.run @train.1B.0.send(%[[D0]]
// CHECK-NEXT: exec.run @train.F.1.received(%[[X1]]) {micro_batch = 1
// CHECK-NEXT: exec.run @train.1F.next({{.*}}, %[[X1]], %[[Y0]]#2) {micro_batch = 1

// CHECK-LABEL: func.func private @train.F.1.receive() -> tensor<3x4xf32>
// CHECK-NEXT: exec.receive {from = 0 : i64, token = [[$TOKEN]] : i64}

// Parts know which action they are: a send where it begins, a receive where it
// ends.
// ACTION-DAG: func.func private @train.F({{.*}}exec.action = {flops = 264 : i64, kind = "forward", name = "F*", stage = 0 : i64}
// ACTION-DAG: func.func private @train.1F({{.*}}exec.action = {flops = 216 : i64, kind = "forward", name = "1F*", stage = 1 : i64}
// ACTION-DAG: func.func private @train.B.next({{.*}}exec.action = {flops = 108 : i64, kind = "backward", name = "B*", stage = 0 : i64}
// ACTION-DAG: func.func private @train.U({{.*}}exec.action = {kind = "update", name = "U", stage = 0 : i64}
// ACTION-DAG: func.func private @train.F.1.send({{.*}}exec.action = {kind = "communication", name = "F*>1", stage = 0 : i64}
// ACTION-DAG: func.func private @train.F.1.received({{.*}}exec.action = {kind = "communication", name = "1<F*", stage = 0 : i64}
// ACTION-DAG: func.func private @train.1B.0.received.last({{.*}}exec.action = {kind = "communication", name = "0<1B*", stage = 1 : i64}
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
