// RUN: cleave-opt %s --spmd-apply-recipes="mesh=dp=2,tp=2 recipes=megatron,zero1 grains=4" | FileCheck %s --check-prefixes=CHECK,MESH
// RUN: cleave-opt %s --spmd-apply-recipes="grains=4" | FileCheck %s --check-prefixes=CHECK,ALONE
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=dp=2,tp=2 recipes=megatron,zero1 grains=4" --spmd-seed-shardings=grains=4 --spmd-pad --spmd-propagate --spmd-partition --spmd-optimize-collectives --spmd-verify | FileCheck %s --check-prefix=LOCAL

// Each gradient is divided into slices, one for each grain; the squares of a
// slice are summed by themselves, rows first. The order is the same on any mesh.

// CHECK-LABEL: func.func @train(
// CHECK-NOT: graph.global_norm

// A gradient that is sharded over "tp" is divided within its shards.
// MESH: %[[V:.*]] = graph.reshape %{{.*}} : (tensor<16x8xf32>) -> tensor<2x4x2x8xf32>
// MESH: %[[S:.*]] = spmd.constrain %[[V]] to <@mesh, [{"tp"}, {"dp"}, {}, {}]>
// MESH: %[[Q:.*]] = graph.mul %[[S]], %[[S]]
// MESH: %[[R:.*]] = graph.reduce sum %[[Q]] {dims = array<i64: 3>, graph.ordered}
// MESH: %[[UP:.*]] = graph.reduce sum %[[R]] {dims = array<i64: 0, 2>, graph.ordered} : (tensor<2x4x2xf32>) -> tensor<4xf32>
// MESH: %[[ALL:.*]] = spmd.constrain %[[UP]] to <@mesh, [{}]>
// MESH: graph.reduce sum %[[ALL]] {dims = array<i64: 0>, graph.ordered} : (tensor<4xf32>) -> tensor<f32>

// Its rest is the state of another dimension: 8 of 3 columns.
// CHECK: graph.reshape %{{.*}} : (tensor<3x8xf32>) -> tensor<3x4x2xf32>
// MESH: spmd.constrain {{.*}} to <@mesh, [{}, {"dp"}, {}]>
// CHECK: graph.reduce sum %{{.*}} {dims = array<i64: 2>, graph.ordered}
// CHECK: %[[OWN:.*]] = graph.reduce sum %{{.*}} {dims = array<i64: 0>, graph.ordered} : (tensor<3x4xf32>) -> tensor<4xf32>

// One that grains do not divide is gathered.
// MESH: %[[ALL:.*]] = spmd.constrain %{{.*}} to <@mesh, [{}]>
// CHECK: %[[ODD:.*]] = graph.reduce sum %{{.*}} {dims = array<i64: 0>, graph.ordered} : (tensor<7xf32>) -> tensor<f32>

// ALONE-NOT: spmd.constrain
// CHECK: graph.sqrt

// LOCAL: graph.reduce sum %{{.*}} {{.*}}graph.ordered{{.*}} -> tensor<2xf32>
// LOCAL: spmd.all_gather %{{.*}} by <@mesh, [{"dp"}]> {{.*}}: tensor<2xf32> -> tensor<4xf32>
// LOCAL: graph.sqrt
func.func @train(
    %up: tensor<16x8xf32> {graph.name = "up", graph.role = "parameter"},
    %down: tensor<8x16xf32> {graph.name = "down", graph.role = "parameter"},
    %m: tensor<16x8xf32> {graph.name = "up.momentum", graph.of = "up", graph.role = "state", graph.slot = "momentum_buffer"},
    %w: tensor<3x8xf32> {graph.name = "w", graph.role = "parameter"},
    %b: tensor<7xf32> {graph.name = "b", graph.role = "parameter"},
    %x: tensor<4x6x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"},
    %lr: tensor<f32> {graph.name = "lr", graph.role = "scalar"},
    %step: tensor<i64> {graph.name = "step", graph.role = "scalar"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<16x8xf32> {graph.updates = "up"},
        tensor<16x8xf32> {graph.updates = "up.momentum"}) {
  %u = graph.linear %x, %up : (tensor<4x6x8xf32>, tensor<16x8xf32>) -> tensor<4x6x16xf32>
  %a = graph.gelu %u : (tensor<4x6x16xf32>) -> tensor<4x6x16xf32>
  %d = graph.linear %a, %down : (tensor<4x6x16xf32>, tensor<8x16xf32>) -> tensor<4x6x8xf32>
  %loss = graph.reduce sum %d {dims = array<i64: 0, 1, 2>} : (tensor<4x6x8xf32>) -> tensor<f32>
  %seed = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  %dy = graph.mul %d, %seed : (tensor<4x6x8xf32>, tensor<f32>) -> tensor<4x6x8xf32>
  %da = graph.contract "bso,oi->bsi" %dy, %down : (tensor<4x6x8xf32>, tensor<8x16xf32>) -> tensor<4x6x16xf32>
  %dw = graph.contract "bso,bsi->oi" %da, %x : (tensor<4x6x16xf32>, tensor<4x6x8xf32>) -> tensor<16x8xf32>
  %gr = graph.gradient %dw of "up" : (tensor<16x8xf32>) -> tensor<16x8xf32>
  %gw = graph.gradient %w of "w" : (tensor<3x8xf32>) -> tensor<3x8xf32>
  %gb = graph.gradient %b of "b" : (tensor<7xf32>) -> tensor<7xf32>
  %n = graph.global_norm %gr, %gw, %gb : (tensor<16x8xf32>, tensor<3x8xf32>, tensor<7xf32>) -> tensor<f32>
  %scaled = graph.mul %gr, %n : (tensor<16x8xf32>, tensor<f32>) -> tensor<16x8xf32>
  %p1, %m1 = graph.sgd %up, %scaled buffer %m lr %lr, %step {momentum = 0.9 : f64, dampening = 0.0 : f64, weight_decay = 0.0 : f64} : (tensor<16x8xf32>, tensor<16x8xf32>, tensor<16x8xf32>, tensor<f32>, tensor<i64>) -> (tensor<16x8xf32>, tensor<16x8xf32>)
  return %loss, %p1, %m1 : tensor<f32>, tensor<16x8xf32>, tensor<16x8xf32>
}
