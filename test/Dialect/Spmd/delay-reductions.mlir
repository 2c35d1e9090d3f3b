// RUN: cleave-opt %s --split-input-file --spmd-delay-reductions --verify-diagnostics | FileCheck %s

// What waits are the terms of each worker; its sum is read, as the recipe places
// it, and the check reads the terms.
spmd.mesh @mesh <["mb" = 2, "dp" = 2]> sequential ["mb"]
// CHECK-LABEL: func.func @train(
// CHECK-SAME: %[[PENDING:[a-z0-9]+]]: tensor<2x2x4xf32> {graph.name = "w.pending_1", graph.of = "w", graph.parameter_dims = array<i64: -1, 0, 1>, graph.role = "state", graph.slot = "pending_1", graph.summed, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}, {}]>}
// CHECK-SAME: tensor<2x2x4xf32> {graph.updates = "w.pending_1", spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}, {}]>}
func.func @train(
    %w: tensor<2x4xf32> {graph.name = "w", graph.role = "parameter"},
    %x: tensor<8x2xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {}]>},
    %g: tensor<8x4xf32> {graph.name = "g", graph.role = "input", graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"mb", "dp"}, {}]>},
    %pending: tensor<2x4xf32> {graph.name = "w.pending_1", graph.of = "w", graph.role = "state",
        graph.slot = "pending_1"})
    -> (tensor<2x4xf32> {graph.updates = "w"}, tensor<2x4xf32> {graph.updates = "w.pending_1"}) {
  // CHECK: %[[SUM:.*]] = graph.reduce sum %[[PENDING]] {dims = array<i64: 0>}
  // CHECK: %[[PLACED:.*]] = spmd.constrain reduced %[[SUM]] to <@mesh, [{"dp"}, {}]>
  // CHECK: %[[OLD:.*]] = graph.gradient %[[PLACED]] of "w.pending_1"
  // CHECK: %[[PARTS:.*]] = graph.per_worker "graph.contract"
  // CHECK: %[[TERMS:.*]] = spmd.constrain %[[PARTS]] to <@mesh, [{"dp"}, {}, {}]>
  // CHECK: %[[OWN:.*]] = graph.gradient %[[TERMS]] of "w" : (tensor<2x2x4xf32>)
  // CHECK: %[[ZEROED:.*]] = graph.mul %[[OWN]], %{{.*}} : (tensor<2x2x4xf32>, tensor<f32>)
  // CHECK: graph.reduce sum %[[ZEROED]] {dims = array<i64: 0, 1, 2>}
  // CHECK: graph.check
  // CHECK: %[[NEW:.*]] = graph.sub %{{.*}}, %[[OLD]]
  // CHECK: %[[KEPT:.*]] = graph.written %[[OWN]] of "w.pending_1"
  // CHECK: return %[[NEW]], %[[KEPT]]
  %old = graph.gradient %pending of "w.pending_1" : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %dw = graph.contract "bi,bo->io" %x, %g : (tensor<8x2xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  %placed = spmd.constrain reduced %dw to <@mesh, [{"dp"}, {}]> : tensor<2x4xf32>
  %own = graph.gradient %placed of "w" : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %zero = graph.constant dense<0.0> : tensor<f32>
  %zeroed = graph.mul %own, %zero : (tensor<2x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  %sum = graph.reduce sum %zeroed {dims = array<i64: 0, 1>} : (tensor<2x4xf32>) -> tensor<f32>
  %finite = graph.compare eq %sum, %zero : (tensor<f32>, tensor<f32>) -> tensor<i1>
  graph.check %finite, "a gradient is not finite" : tensor<i1>
  %new = graph.sub %w, %old : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %kept = graph.written %own of "w.pending_1" : (tensor<2x4xf32>) -> tensor<2x4xf32>
  return %new, %kept : tensor<2x4xf32>, tensor<2x4xf32>
}

// -----

// Another reader would wait for the sum.
spmd.mesh @mesh <["dp" = 2]>
func.func @train(
    %w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
    %x: tensor<8x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64,
        spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>},
    %pending: tensor<4xf32> {graph.name = "w.pending_1", graph.of = "w", graph.role = "state",
        graph.slot = "pending_1"})
    -> (tensor<4xf32> {graph.updates = "w"}, tensor<4xf32> {graph.updates = "w.pending_1"}) {
  %dw = graph.reduce sum %x {dims = array<i64: 0>} : (tensor<8x4xf32>) -> tensor<4xf32>
  %own = graph.gradient %dw of "w" : (tensor<4xf32>) -> tensor<4xf32>
  // expected-error @below {{reads a gradient whose reduction is delayed: it would have to wait for it; leave out 'reduce=next'}}
  %new = graph.sub %w, %own : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %kept = graph.written %own of "w.pending_1" : (tensor<4xf32>) -> tensor<4xf32>
  return %new, %kept : tensor<4xf32>, tensor<4xf32>
}

// -----

spmd.mesh @mesh <["dp" = 2]>
// expected-error @below {{delayed reductions: no axis of the mesh shards samples}}
func.func @train(
    %w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
    %x: tensor<8x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64})
    -> (tensor<4xf32> {graph.updates = "w"}) {
  %dw = graph.reduce sum %x {dims = array<i64: 0>} : (tensor<8x4xf32>) -> tensor<4xf32>
  %own = graph.gradient %dw of "w" : (tensor<4xf32>) -> tensor<4xf32>
  return %own : tensor<4xf32>
}
