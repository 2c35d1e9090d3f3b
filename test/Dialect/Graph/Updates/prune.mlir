// RUN: cleave-opt %s --graph-prune=prune=2:4 --verify-diagnostics | FileCheck %s --check-prefixes=CHECK,GROUPS
// RUN: cleave-opt %s --graph-prune=prune=0.5 --verify-diagnostics | FileCheck %s --check-prefixes=CHECK,ONCE
// RUN: cleave-opt %s --graph-prune=prune=0.5,cubic,steps=10 --verify-diagnostics | FileCheck %s --check-prefixes=CHECK,CUBIC

// What is returned of a weight is zero where its mask is. Up to a step the mask
// is chosen by the magnitudes of the updated weight, then it is what was not zero.
// CHECK-LABEL: func.func @train(
// CUBIC: %[[T:.*]] = graph.cast %arg4 : (tensor<i64>) -> tensor<f64>
// CUBIC: %[[LEFT:.*]] = graph.sub %{{.*}} : (tensor<f64>, tensor<f64>) -> tensor<f64>
// CUBIC: %[[SQUARE:.*]] = graph.mul %[[LEFT]], %[[LEFT]]
// CUBIC: graph.mul %[[LEFT]], %[[SQUARE]]
// CHECK: %[[NEW:.*]] = graph.sub %arg0,
// CHECK: %[[SIZE:.*]] = graph.abs %[[NEW]]
// GROUPS: graph.reshape %[[SIZE]] : (tensor<3x8xf32>) -> tensor<3x2x4xf32>
// GROUPS-COUNT-4: graph.slice
// GROUPS-COUNT-6: graph.compare ge
// GROUPS: graph.concat
// GROUPS: %[[CHOSEN:.*]] = graph.reshape %{{.*}} : (tensor<3x2x4xi1>) -> tensor<3x8xi1>
// ONCE: graph.top_k %{{.*}} {k = 12 : i64} : (tensor<1x24xf32>)
// CUBIC: graph.top_k %{{.*}} {k = 24 : i64} : (tensor<1x24xf32>)
// CUBIC: graph.compare lt
// ONCE: graph.scatter_add
// CUBIC: graph.scatter_add
// ONCE: %[[CHOSEN:.*]] = graph.reshape %{{.*}} : (tensor<1x24xi1>) -> tensor<3x8xi1>
// CUBIC: %[[CHOSEN:.*]] = graph.reshape %{{.*}} : (tensor<1x24xi1>) -> tensor<3x8xi1>
// CHECK: %[[IS:.*]] = graph.compare ne %[[NEW]],
// CHECK: %[[OLD:.*]] = graph.select %[[IS]], %arg0,
// GROUPS: graph.constant dense<1> : tensor<i64>
// ONCE: graph.constant dense<1> : tensor<i64>
// CUBIC: graph.constant dense<10> : tensor<i64>
// CHECK: %[[FIXED:.*]] = graph.compare gt %arg4,
// CHECK: %[[WAS:.*]] = graph.compare ne %[[OLD]],
// CHECK: %[[MASK:.*]] = graph.select %[[FIXED]], %[[WAS]], %[[CHOSEN]]
// CHECK: %[[PRUNED:.*]] = graph.select %[[MASK]], %[[NEW]],
// CHECK: %[[TABLE:.*]] = graph.sub %arg1,
// CHECK: return %{{.*}}, %[[PRUNED]], %[[TABLE]]
func.func @train(
    %w: tensor<3x8xf32> {graph.name = "w", graph.role = "parameter"},
    // expected-remark @+1 {{"e" is not pruned: 'graph.gather' reads it}}
    %e: tensor<5x8xf32> {graph.name = "e", graph.role = "parameter"},
    %x: tensor<4xi64> {graph.name = "x", graph.role = "input"},
    %lr: tensor<f32> {graph.name = "lr", graph.role = "scalar"},
    %step: tensor<i64> {graph.name = "step", graph.role = "scalar"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<3x8xf32> {graph.updates = "w"}, tensor<5x8xf32> {graph.updates = "e"}) {
  %h = graph.gather %e, %x {dim = 0 : i64} : (tensor<5x8xf32>, tensor<4xi64>) -> tensor<4x8xf32>
  %y = graph.linear %h, %w : (tensor<4x8xf32>, tensor<3x8xf32>) -> tensor<4x3xf32>
  %loss = graph.reduce sum %y {dims = array<i64: 0, 1>} : (tensor<4x3xf32>) -> tensor<f32>
  %s = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  %dy = graph.broadcast %s : (tensor<f32>) -> tensor<4x3xf32>
  %dw = graph.contract "ro,ri->oi" %dy, %h : (tensor<4x3xf32>, tensor<4x8xf32>) -> tensor<3x8xf32>
  %dh = graph.contract "ro,oi->ri" %dy, %w : (tensor<4x3xf32>, tensor<3x8xf32>) -> tensor<4x8xf32>
  %gw = graph.gradient %dw of "w" : (tensor<3x8xf32>) -> tensor<3x8xf32>
  %de = graph.scatter_add %dh, %x {dim = 0 : i64, size = 5 : i64} : (tensor<4x8xf32>, tensor<4xi64>) -> tensor<5x8xf32>
  %ge = graph.gradient %de of "e" : (tensor<5x8xf32>) -> tensor<5x8xf32>
  %uw = graph.mul %gw, %lr : (tensor<3x8xf32>, tensor<f32>) -> tensor<3x8xf32>
  %nw = graph.sub %w, %uw : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x8xf32>
  %ue = graph.mul %ge, %lr : (tensor<5x8xf32>, tensor<f32>) -> tensor<5x8xf32>
  %ne = graph.sub %e, %ue : (tensor<5x8xf32>, tensor<5x8xf32>) -> tensor<5x8xf32>
  return %loss, %nw, %ne : tensor<f32>, tensor<3x8xf32>, tensor<5x8xf32>
}
