// RUN: cleave-opt %s --split-input-file --spmd-compress-gradients="compress=topk,density=0.25,smallest=0" | FileCheck %s --check-prefixes=CHECK,TOPK
// RUN: cleave-opt %s --split-input-file --spmd-compress-gradients="compress=powersgd,rank=1,min_rate=0" | FileCheck %s --check-prefixes=CHECK,POWER

// Samples are of micro-batch, worker, sample. What a worker keeps is state.
spmd.mesh @mesh <["mb" = 2, "dp" = 2]> sequential ["mb"]
// CHECK-LABEL: func.func @train(
// CHECK-SAME: tensor<2x2x4xf32> {graph.elements = 8 : i64, graph.name = "w.residual", graph.of = "w", graph.optional = "compression", graph.parameter_dims = array<i64: -1, 0, 1>, graph.role = "state", graph.slot = "residual", graph.summed, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}, {}]>}
// POWER-SAME: tensor<4x1xf32> {graph.name = "w.right_factor"
// CHECK-SAME: tensor<2x2x4xf32> {graph.updates = "w.residual"
func.func @train(
    %w: tensor<2x4xf32> {graph.name = "w", graph.role = "parameter"},
    %x: tensor<8x2xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {}]>},
    %g: tensor<8x4xf32> {graph.name = "g", graph.role = "input", graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {}]>}) -> (tensor<2x4xf32> {graph.updates = "w"}) {
  // CHECK-DAG: %[[X:.*]] = graph.reshape %{{.*}} : (tensor<8x2xf32>) -> tensor<2x2x2x2xf32>
  // CHECK-DAG: %[[G:.*]] = graph.reshape %{{.*}} : (tensor<8x4xf32>) -> tensor<2x2x2x4xf32>
  // CHECK: %[[PARTS:.*]] = graph.per_worker "graph.contract" of %[[X]], %[[G]] at [1, 1] to [0] with {equation = "bi,bo->io"}
  // CHECK: %[[GRADIENT:.*]] = graph.gradient %[[PARTS]] of "w" : (tensor<2x2x4xf32>)
  // CHECK: %[[TERMS:.*]] = graph.add %[[GRADIENT]], %arg3
  // TOPK: %[[ALL:.*]] = spmd.constrain {{.*}} to <@mesh, [{"dp"}, {}, {}]>
  // TOPK: %{{.*}}, %[[INDICES:.*]] = graph.top_k %{{.*}} {k = 2 : i64}
  // TOPK: %[[VALUES:.*]] = graph.gather %[[ALL]], %[[INDICES]]
  // TOPK: %[[OWN:.*]] = graph.scatter_add %[[VALUES]], %[[INDICES]]
  // TOPK: graph.sub %[[ALL]], %[[OWN]]
  // TOPK: spmd.constrain %{{.*}} to <@mesh, [{}, {}, {}]> : tensor<2x1x2xi32>
  // TOPK: spmd.constrain %[[VALUES]] to <@mesh, [{}, {}, {}]>
  // TOPK: graph.scatter_add {{.*}} -> tensor<1x8xf32>
  // POWER: graph.contract "wnm,mr->wnr" %[[TERMS]],
  // POWER: %[[P:.*]] = graph.orthonormalize
  // POWER: graph.contract "wnm,nr->wmr" %[[TERMS]], %[[P]]
  // POWER: %[[SUM:.*]] = graph.reduce sum
  // POWER: %[[Q:.*]] = spmd.constrain reduced %[[SUM]]
  // POWER: graph.contract "nr,mr->nm" %[[P]], %[[Q]]
  %dw = graph.contract "bi,bo->io" %x, %g : (tensor<8x2xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  %done = graph.gradient %dw of "w" : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %n = graph.sub %w, %done : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  return %n : tensor<2x4xf32>
}

// -----

// Two gradients send one message of each kind. One has two terms: a tied
// weight, and a term that no sample decides, of which each worker has its share.
spmd.mesh @mesh <["mb" = 2, "dp" = 2]> sequential ["mb"]
// CHECK-LABEL: func.func @packed(
func.func @packed(
    %v: tensor<2x4xf32> {graph.name = "v", graph.role = "parameter"},
    %w: tensor<2x4xf32> {graph.name = "w", graph.role = "parameter"},
    %x: tensor<8x2xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {}]>},
    %g: tensor<8x4xf32> {graph.name = "g", graph.role = "input", graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {}]>}) -> (tensor<2x4xf32> {graph.updates = "v"}, tensor<2x4xf32> {graph.updates = "w"}) {
  // CHECK: %[[SHARE:.*]] = graph.mul %arg0, %{{.*}} : (tensor<2x4xf32>, tensor<f32>)
  // CHECK: graph.per_worker "graph.add" of %{{.*}}, %[[SHARE]] at [0, -1] to [0]
  // TOPK: graph.concat %{{.*}}, %{{.*}} {dim = 2 : i64} : (tensor<2x1x2xi32>, tensor<2x1x2xi32>)
  // TOPK-NEXT: spmd.constrain
  // TOPK: graph.concat %{{.*}}, %{{.*}} {dim = 2 : i64} : (tensor<2x1x2xf32>, tensor<2x1x2xf32>)
  // TOPK-NEXT: spmd.constrain
  // POWER: graph.concat {{.*}} {dim = 1 : i64} : (tensor<2x2xf32>, tensor<2x2xf32>)
  // POWER-NEXT: graph.reduce sum
  // POWER-COUNT-2: graph.orthonormalize
  // POWER: graph.concat {{.*}} {dim = 1 : i64} : (tensor<2x4xf32>, tensor<2x4xf32>)
  // POWER-NEXT: graph.reduce sum
  %dv = graph.contract "bi,bo->io" %x, %g : (tensor<8x2xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  %sum = graph.add %dv, %v : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %0 = graph.gradient %sum of "v" : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %dw = graph.contract "bi,bo->io" %x, %g : (tensor<8x2xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  %1 = graph.gradient %dw of "w" : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %2 = graph.sub %v, %0 : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %3 = graph.sub %w, %1 : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  return %2, %3 : tensor<2x4xf32>, tensor<2x4xf32>
}
