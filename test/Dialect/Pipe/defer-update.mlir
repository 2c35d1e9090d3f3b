// RUN: cleave-opt %s --spmd-seed-shardings=micro-batches=1 --spmd-propagate --spmd-partition --spmd-verify --pipe-defer-update | FileCheck %s
// RUN: cleave-opt %s --spmd-seed-shardings=micro-batches=1 --spmd-propagate --spmd-partition --pipe-defer-update --pipe-split-stages --pipe-recompute --pipe-schedule --pipe-verify | FileCheck %s --check-prefix=ONE
// RUN: cleave-opt %s --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --pipe-defer-update --pipe-split-stages --pipe-recompute --pipe-schedule --pipe-verify | FileCheck %s --check-prefix=TWO
// RUN: cleave-opt %s --spmd-apply-recipes=mesh=pp=2 --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --pipe-defer-update --pipe-split-stages=stages=v --pipe-schedule --pipe-verify | FileCheck %s --check-prefix=STAGES
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=dp=2 recipes=zero1" --spmd-seed-shardings=micro-batches=1 --spmd-propagate --spmd-partition --pipe-defer-update | FileCheck %s --check-prefix=SHARDS
// RUN: cleave-opt %s --spmd-seed-shardings=micro-batches=1 --spmd-propagate --spmd-partition --pipe-defer-update --pipe-split-stages --pipe-schedule --exec-unroll-schedule | FileCheck %s --check-prefix=UNROLL
// RUN: cleave-opt %s --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --pipe-defer-update --pipe-split-stages --pipe-schedule --exec-unroll-schedule | FileCheck %s --check-prefix=SUMS

// What an update reads of a step is kept: gradients, and what is made of all of
// them. It runs before the first reader of its parameter, and the readers read
// what it makes.
// CHECK-LABEL: func.func @train(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<4x4xf32> {graph.name = "w"
// CHECK-SAME: %[[V:[a-z0-9]+]]: tensor<4x4xf32> {graph.name = "v"
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<6x4xf32>
// CHECK-SAME: %[[GW:[a-z0-9]+]]: tensor<4x4xf32> {graph.name = "w.gradient", graph.of = "w", graph.role = "gradient"
// CHECK-SAME: %[[GV:[a-z0-9]+]]: tensor<4x4xf32> {graph.name = "v.gradient", graph.of = "v", graph.role = "gradient"
// CHECK-SAME: %[[S:[a-z0-9]+]]: tensor<f32> {graph.name = "update.2", graph.role = "gradient"
// CHECK-SAME: %[[LR:[a-z0-9]+]]: tensor<f32> {graph.name = "previous.lr", graph.role = "scalar"
// CHECK-SAME: %[[PENDING:[a-z0-9]+]]: tensor<i1> {graph.name = "update_pending", graph.role = "scalar"
// CHECK: %[[W1:.*]] = graph.sgd %[[W]], %[[GW]] lr %[[LR]]{{.*}} scale %[[S]]
// CHECK-NEXT: %[[NW:.*]] = graph.select %[[PENDING]], %[[W1]], %[[W]]
// CHECK-NEXT: graph.contract "bi,oi->bo" %[[X]], %[[NW]]
// CHECK-NEXT: graph.tanh
// CHECK-NEXT: %[[V1:.*]] = graph.sgd %[[V]], %[[GV]] lr %[[LR]]{{.*}} scale %[[S]]
// CHECK-NEXT: %[[NV:.*]] = graph.select %[[PENDING]], %[[V1]], %[[V]]
// CHECK-NEXT: graph.contract "bi,oi->bo" %{{.*}}, %[[NV]]
// CHECK: %[[FW:.*]] = graph.gradient %{{.*}} of "w"
// CHECK: %[[FV:.*]] = graph.gradient %{{.*}} of "v"
// CHECK: graph.global_norm %[[FW]], %[[FV]]
// CHECK-NEXT: %[[SCALE:.*]] = graph.div
// CHECK-NEXT: return %{{.*}}, %[[NW]], %[[NV]], %[[FW]], %[[FV]], %[[SCALE]]

// What is left of the last step is an entry.
// CHECK-LABEL: func.func @update(
// CHECK-NOT: graph.contract
// CHECK-NOT: graph.gradient
// CHECK-COUNT-2: graph.sgd
// CHECK: return %{{.*}}, %{{.*}} : tensor<4x4xf32>, tensor<4x4xf32>

// With one micro-batch, in forward; backward reads the parameter where it is.
// ONE-LABEL: pipe.program @train(
// ONE-SAME: pipe.early_update, pipe.optimizer_fusion = "forward"
// ONE-SAME: schedule = "F0 B0 U"
// ONE: %[[F:.*]]:5 = pipe.invoke @train.F({{.*}} results = ["value", "saved", "value", "saved", "accumulate"]
// ONE-NEXT: pipe.invoke @train.B({{.*}}%[[F]]#2
// ONE-LABEL: func.func private @train.F(
// ONE: graph.sgd
// ONE-NEXT: graph.select
// ONE-NEXT: graph.contract
// ONE: graph.sgd
// ONE-NEXT: graph.select
// ONE-NEXT: graph.contract
// ONE-LABEL: func.func private @train.B(
// ONE-NOT: graph.sgd
// ONE-LABEL: pipe.program @update(
// ONE-SAME: schedule = "F0"

// With several, before forward, once.
// TWO-LABEL: pipe.program @train(
// TWO-SAME: schedule = "D F0 B0 F1 B1 U"
// TWO: pipe.invoke @train.D({{.*}} once
// TWO-LABEL: func.func private @train.F(
// TWO-NOT: graph.sgd
// TWO-LABEL: pipe.program @update(
// TWO-SAME: schedule = "D"

// Each stage has the updates of what it reads, also where nothing else runs.
// STAGES-LABEL: pipe.program @train(
// STAGES-SAME: schedule = "D {{.*}} | 1D
// STAGES-LABEL: func.func private @train.D(
// STAGES-COUNT-1: graph.sgd
// STAGES-NOT: graph.sgd
// STAGES-LABEL: func.func private @train.1D(
// STAGES-COUNT-1: graph.sgd
// STAGES-LABEL: pipe.program @update(
// STAGES-SAME: schedule = "D | 1D"

// Chosen where each device has its part, and then gathered.
// SHARDS-LABEL: func.func @train(
// SHARDS-SAME: tensor<2x4xf32> {graph.name = "w.gradient", graph.of = "w", graph.role = "gradient", spmd.global_type = tensor<4x4xf32>
// SHARDS: %[[OLD:.*]] = spmd.slice
// SHARDS: %[[NEW:.*]] = graph.sgd %[[OLD]]
// SHARDS-NEXT: %[[CHOSEN:.*]] = graph.select %{{.*}}, %[[NEW]], %[[OLD]]
// SHARDS-NEXT: spmd.all_gather %[[CHOSEN]]

// Backward writes gradients where they are kept.
// UNROLL-LABEL: exec.program @train(
// UNROLL: exec.run @train.B(
// UNROLL: func.func private @train.B({{.*}}exec.dies{{.*}} -> ({{.*}}exec.gradient
// So does a sum over micro-batches from its first term on.
// SUMS: func.func private @train.B({{.*}}exec.dies{{.*}} -> ({{.*}}exec.gradient
func.func @train(%w: tensor<4x4xf32> {graph.name = "w", graph.role = "parameter"},
                 %v: tensor<4x4xf32> {graph.name = "v", graph.role = "parameter"},
                 %x: tensor<6x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64},
                 %lr: tensor<f32> {graph.name = "lr", graph.role = "scalar"},
                 %n: tensor<i64> {graph.name = "step", graph.role = "scalar"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<4x4xf32> {graph.updates = "w"}, tensor<4x4xf32> {graph.updates = "v"}) {
  %h = graph.contract "bi,oi->bo" %x, %w : (tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
  %t = graph.tanh %h : (tensor<6x4xf32>) -> tensor<6x4xf32>
  %k = graph.contract "bi,oi->bo" %t, %v : (tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
  %loss = graph.reduce sum %k {dims = array<i64: 0, 1>} : (tensor<6x4xf32>) -> tensor<f32>
  %seed = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  %dk = graph.mul %k, %seed : (tensor<6x4xf32>, tensor<f32>) -> tensor<6x4xf32>
  %dv = graph.contract "bo,bi->oi" %dk, %t : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
  %dt = graph.contract "bo,oi->bi" %dk, %v : (tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
  %dh = graph.mul %dt, %t : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<6x4xf32>
  %dw = graph.contract "bo,bi->oi" %dh, %x : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
  %gw = graph.gradient %dw of "w" : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %gv = graph.gradient %dv of "v" : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %norm = graph.global_norm %gw, %gv : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<f32>
  %scale = graph.div %lr, %norm : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %w1 = graph.sgd %w, %gw lr %lr, %n scale %scale {momentum = 0.0 : f64, dampening = 0.0 : f64, weight_decay = 0.0 : f64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>, tensor<i64>, tensor<f32>) -> tensor<4x4xf32>
  %v1 = graph.sgd %v, %gv lr %lr, %n scale %scale {momentum = 0.0 : f64, dampening = 0.0 : f64, weight_decay = 0.0 : f64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>, tensor<i64>, tensor<f32>) -> tensor<4x4xf32>
  return %loss, %w1, %v1 : tensor<f32>, tensor<4x4xf32>, tensor<4x4xf32>
}
