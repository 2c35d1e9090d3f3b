// RUN: cleave-opt %s --spmd-apply-recipes="mesh=pp=2,dp=2 recipes=zero3" --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify --pipe-split-stages="stages=v gather=once" --pipe-schedule --pipe-verify | FileCheck %s --check-prefix=ONCE
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=pp=2,dp=2 recipes=zero3" --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify --pipe-split-stages="stages=v gather=once gather-over=dp" --pipe-schedule --pipe-verify | FileCheck %s --check-prefix=ONCE
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=pp=2,dp=2 recipes=zero3" --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify --pipe-split-stages="stages=v gather=once gather-over=tp" --pipe-schedule --pipe-verify | FileCheck %s --check-prefix=OTHER
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=pp=2,dp=2 recipes=zero3" --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify --pipe-split-stages="stages=v" --pipe-schedule --pipe-verify | FileCheck %s --check-prefix=EACH
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=pp=2,dp=2 recipes=zero3" --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify --pipe-split-stages="stages=v gather=auto" --pipe-schedule --pipe-verify | FileCheck %s --check-prefix=AUTO
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=pp=2,dp=2 recipes=zero1" --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify --pipe-split-stages="stages=v gather=once" --pipe-schedule --pipe-verify | FileCheck %s --check-prefix=REDUCE
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=pp=2,dp=2 recipes=zero1" --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify --pipe-split-stages="stages=v split-backward=true" --pipe-schedule=kind=zb-h1 --pipe-verify | FileCheck %s --check-prefix=SPLIT
// RUN: not cleave-opt %s --spmd-apply-recipes="mesh=pp=2,dp=2 recipes=zero3" --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify --pipe-split-stages=gather=twice 2>&1 | FileCheck %s --check-prefix=BAD

// Two layers, of which the second begins a stage; the first weight is read behind
// the second, too, and the update divides by the norm of all gradients.

// Each stage gathers what it reads once, forward and backward of all micro-batches
// read that: also where a barrier has left it to backward.
// ONCE-LABEL: pipe.program @train(
// ONCE-SAME: %[[W:[a-z0-9]+]]: tensor<2x4xf32> {graph.name = "w"
// ONCE-SAME: %[[V:[a-z0-9]+]]: tensor<2x4xf32> {graph.name = "v"
// ONCE-SAME: %[[X:[a-z0-9]+]]: tensor<4x4xf32>
// ONCE-SAME: pipe.gather = "once"
// ONCE-SAME: schedule = "G {2+1: F0 F0>1} {{.*}} N N>1 U | 1G 1<F0 1F0 {{.*}} 1U"
// ONCE: %[[G:.*]] = pipe.invoke @train.G(%[[W]]) {part = "G", once, split = array<i64: -1>, results = ["value"]} : (tensor<2x4xf32>) -> tensor<4x4xf32>
// ONCE: %[[G1:.*]]:2 = pipe.invoke @train.1G(%[[W]], %[[V]]) {part = "G", stage = 1, once, split = array<i64: -1, -1>, results = ["value", "value"]}
// ONCE: %[[F:.*]]:2 = pipe.invoke @train.F(%[[X]], %[[G]]) {part = "F"
// ONCE: pipe.invoke @train.1F(%[[G1]]#0, %[[G1]]#1, %[[F]]#1) {part = "F", stage = 1
// ONCE: pipe.invoke @train.1B(%[[G1]]#0, %[[G1]]#1, {{.*}} {part = "B", stage = 1
// ONCE-LABEL: func.func private @train.G(
// ONCE-NEXT: spmd.all_gather
// ONCE-NEXT: return
// ONCE-LABEL: func.func private @train.1G(
// ONCE-NEXT: spmd.all_gather
// ONCE-NEXT: spmd.all_gather
// ONCE-NEXT: return
// ONCE-LABEL: func.func private @train.F(
// ONCE-NOT: spmd.all_gather

// Gradients are reduced for each micro-batch here: no R.
// ONCE-NOT: @train.R

// Nothing is gathered over another axis.
// OTHER-LABEL: pipe.program @train(
// OTHER-NOT: @train.G
// OTHER-LABEL: func.func private @train.1B(
// OTHER-COUNT-2: spmd.all_gather

// EACH-LABEL: pipe.program @train(
// EACH-SAME: pipe.gather = "each"
// EACH-LABEL: func.func private @train.1F(
// EACH-COUNT-2: spmd.all_gather
// EACH-LABEL: func.func private @train.1B(
// EACH-COUNT-2: spmd.all_gather

// AUTO-LABEL: pipe.program @train(
// AUTO-SAME: pipe.gather = "each: gathered parameters of 128 bytes are more than the 64 bytes of parameters and state that a device holds"
// AUTO-NOT: @train.G

// Finished sums are reduced once, for the norm and for the update, in each stage
// that updates the parameter; what is gathered behind an update is its own.
// REDUCE-LABEL: pipe.program @train(
// REDUCE-NOT: pipe.gather
// REDUCE-SAME: schedule = "{{.*}} B1>1 R 0<1N N N>1 U | {{.*}} 1R 1N {{.*}}1U"
// REDUCE: %[[B1:.*]]:3 = pipe.invoke @train.1B(
// REDUCE: %[[B:.*]] = pipe.invoke @train.B(
// REDUCE: %[[R:.*]] = pipe.invoke @train.R(%[[B1]]#0, %[[B]]) {part = "R", once, split = array<i64: -1, -1>, results = ["value"]} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
// REDUCE: %[[R1:.*]]:2 = pipe.invoke @train.1R(%[[B1]]#2, %[[B1]]#0, %[[B]]) {part = "R", stage = 1, once,
// REDUCE: %[[N1:.*]] = pipe.invoke @train.1N(%[[R1]]#0) {part = "N", stage = 1, once,
// REDUCE: %[[N:.*]] = pipe.invoke @train.N(%[[R]], %[[N1]]) {part = "N", once,
// REDUCE: pipe.invoke @train.U({{.*}}, %[[R]], %[[N]]) {part = "U", once,
// REDUCE: pipe.invoke @train.1U({{.*}}, %[[R1]]#0, %[[R1]]#1, %[[N]]) {part = "U", stage = 1, once,
// REDUCE-LABEL: func.func private @train.R(
// REDUCE-NEXT: graph.add
// REDUCE-NEXT: spmd.reduce_scatter
// REDUCE-NEXT: return
// REDUCE-LABEL: func.func private @train.1R(
// REDUCE-COUNT-2: spmd.reduce_scatter
// REDUCE-LABEL: func.func private @train.N(
// REDUCE-NOT: spmd.reduce_scatter
// REDUCE-LABEL: func.func private @train.U(
// REDUCE: spmd.all_gather

// SPLIT-LABEL: pipe.program @train(
// SPLIT-SAME: schedule = "{{.*}} W1>1 0<1W1 R 0<1N N {{.*}}U | {{.*}} 1W1>0 1R 1N {{.*}}1U"

// BAD: gather must be each, once or auto, got 'twice'
func.func @train(%w: tensor<4x4xf32> {graph.name = "w", graph.role = "parameter"},
                 %v: tensor<4x4xf32> {graph.name = "v", graph.role = "parameter"},
                 %x: tensor<8x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64},
                 %lr: tensor<f32> {graph.name = "lr", graph.role = "scalar"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<4x4xf32> {graph.updates = "w"}, tensor<4x4xf32> {graph.updates = "v"}) {
  %h = graph.contract "bi,oi->bo" %x, %w : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %t = graph.tanh %h : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %k = graph.contract "bi,oi->bo" %t, %v : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %y = graph.contract "bi,oi->bo" %k, %w : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %q = graph.mul %y, %y : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %loss = graph.reduce sum %q {dims = array<i64: 0, 1>} : (tensor<8x4xf32>) -> tensor<f32>
  %seed = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  %dy = graph.mul %y, %seed : (tensor<8x4xf32>, tensor<f32>) -> tensor<8x4xf32>
  %dk = graph.contract "bo,oi->bi" %dy, %w : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %dw2 = graph.contract "bo,bi->oi" %dy, %k : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %dt = graph.contract "bo,oi->bi" %dk, %v : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %dv = graph.contract "bo,bi->oi" %dk, %t : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %dh = graph.mul %dt, %h : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %dw1 = graph.contract "bo,bi->oi" %dh, %x : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
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
