// RUN: cleave-opt %s --spmd-apply-recipes="mesh=dp=2,tp=2 recipes=megatron" | FileCheck %s --check-prefixes=CHECK,TP
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=dp=2,tp=2 recipes=megatron-sp" | FileCheck %s --check-prefixes=CHECK,TP,SP
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=dp=2 recipes=zero1" | FileCheck %s --check-prefixes=ZERO1
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=dp=2 recipes=zero2" | FileCheck %s --check-prefixes=ZERO2
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=fsdp=2 recipes=zero3(fsdp)" | FileCheck %s --check-prefixes=ZERO3

// An MLP: what %up makes and %down sums over is split, in the state as well. Its
// input and output features meet a norm, which needs them whole.

// CHECK: spmd.mesh @mesh <["dp" = 2, "tp" = 2]>
// CHECK-LABEL: func.func @train(
// TP-SAME: graph.name = "up", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>}
// TP-SAME: graph.name = "down", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>}
// TP-SAME: graph.name = "up.momentum", {{[^}]*}}spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>}
// CHECK-SAME: graph.name = "x", graph.role = "input", spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}, {}]>}
// SP: %[[DOWN:.*]] = graph.linear {{.*}} -> tensor<4x6x8xf32>
// SP: spmd.constrain %[[DOWN]] to <@mesh, [{?}, {"tp"}, {?}]>

// State lies in parts; a gradient is reduced into them, once, or in each
// micro-batch.
// ZERO1: graph.name = "up", graph.role = "parameter"}
// ZERO1-SAME: graph.name = "up.momentum", {{[^}]*}}spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>}
// ZERO1: %[[R:.*]] = spmd.constrain reduced %{{.*}} to <@mesh, [{"dp"}, {}]>
// ZERO1: graph.gradient %[[R]] of "up"
// ZERO2: %[[R:.*]] = spmd.constrain %{{.*}} to <@mesh, [{"dp"}, {}]>
// ZERO2: graph.gradient %[[R]] of "up"

// Parameters too, but not for those that read them.
// ZERO3-LABEL: func.func @train(
// ZERO3-SAME: %[[UP:[a-z0-9]+]]: tensor<16x8xf32> {graph.name = "up", graph.role = "parameter", spmd.sharding = #spmd.sharding<@mesh, [{"fsdp"}, {}]>}
// ZERO3: %[[WHOLE:.*]] = spmd.constrain %[[UP]] to <@mesh, [{}, {}]>
// ZERO3: graph.linear %{{.*}}, %[[WHOLE]]
// ZERO3: graph.sgd %[[UP]]
func.func @train(
    %up: tensor<16x8xf32> {graph.name = "up", graph.role = "parameter"},
    %down: tensor<8x16xf32> {graph.name = "down", graph.role = "parameter"},
    %g: tensor<8xf32> {graph.name = "g", graph.role = "parameter"},
    %m: tensor<16x8xf32> {graph.name = "up.momentum", graph.of = "up", graph.role = "state", graph.slot = "momentum_buffer"},
    %x: tensor<4x6x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"},
    %lr: tensor<f32> {graph.name = "lr", graph.role = "scalar"},
    %step: tensor<i64> {graph.name = "step", graph.role = "scalar"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<16x8xf32> {graph.updates = "up"},
        tensor<16x8xf32> {graph.updates = "up.momentum"}) {
  %n, %r = graph.rms_norm %x weight %g {epsilon = 1.0e-6 : f64} : (tensor<4x6x8xf32>, tensor<8xf32>) -> (tensor<4x6x8xf32>, tensor<4x6xf32>)
  %u = graph.linear %n, %up : (tensor<4x6x8xf32>, tensor<16x8xf32>) -> tensor<4x6x16xf32>
  %a = graph.gelu %u : (tensor<4x6x16xf32>) -> tensor<4x6x16xf32>
  %d = graph.linear %a, %down : (tensor<4x6x16xf32>, tensor<8x16xf32>) -> tensor<4x6x8xf32>
  %y = graph.add %d, %x : (tensor<4x6x8xf32>, tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
  %loss = graph.reduce sum %y {dims = array<i64: 0, 1, 2>} : (tensor<4x6x8xf32>) -> tensor<f32>
  %seed = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  %dy = graph.mul %y, %seed : (tensor<4x6x8xf32>, tensor<f32>) -> tensor<4x6x8xf32>
  %da = graph.contract "bso,oi->bsi" %dy, %down : (tensor<4x6x8xf32>, tensor<8x16xf32>) -> tensor<4x6x16xf32>
  %dw = graph.contract "bso,bsi->oi" %da, %n : (tensor<4x6x16xf32>, tensor<4x6x8xf32>) -> tensor<16x8xf32>
  %gr = graph.gradient %dw of "up" : (tensor<16x8xf32>) -> tensor<16x8xf32>
  %p1, %m1 = graph.sgd %up, %gr buffer %m lr %lr, %step {momentum = 0.9 : f64, dampening = 0.0 : f64, weight_decay = 0.0 : f64} : (tensor<16x8xf32>, tensor<16x8xf32>, tensor<16x8xf32>, tensor<f32>, tensor<i64>) -> (tensor<16x8xf32>, tensor<16x8xf32>)
  return %loss, %p1, %m1 : tensor<f32>, tensor<16x8xf32>, tensor<16x8xf32>
}
