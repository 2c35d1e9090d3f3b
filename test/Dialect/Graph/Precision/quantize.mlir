// RUN: cleave-opt %s --graph-quantize --verify-diagnostics | FileCheck %s

// Forward and backward read the rounded weight, the update the weight itself.
// CHECK-LABEL: func.func @train(
// CHECK: %[[SIZE:.*]] = graph.abs %arg0
// CHECK: %[[MOST:.*]] = graph.reduce max %[[SIZE]] {dims = array<i64: 1>}
// CHECK: %[[SCALE:.*]] = graph.div %[[MOST]],
// CHECK: %[[ZERO:.*]] = graph.compare eq %[[SCALE]],
// CHECK: graph.select %[[ZERO]], %{{.*}}, %[[SCALE]]
// CHECK: graph.floor
// CHECK: %[[CODE:.*]] = graph.minimum
// CHECK: %[[W:.*]] = graph.mul %[[CODE]],
// CHECK: graph.linear %{{.*}}, %[[W]]
// CHECK: graph.contract "ro,oi->ri" %{{.*}}, %[[W]]
// What only the update reads is the weight itself too.
// CHECK: graph.mul %arg0, %arg3
// CHECK: graph.sub %arg0,
func.func @train(
    %w: tensor<3x8xf32> {graph.name = "w", graph.role = "parameter"},
    // expected-remark @+1 {{"e" is not quantized: 'graph.gather' reads it}}
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
  %decay = graph.mul %w, %lr : (tensor<3x8xf32>, tensor<f32>) -> tensor<3x8xf32>
  %both = graph.add %uw, %decay : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x8xf32>
  %nw = graph.sub %w, %both : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x8xf32>
  %ue = graph.mul %ge, %lr : (tensor<5x8xf32>, tensor<f32>) -> tensor<5x8xf32>
  %ne = graph.sub %e, %ue : (tensor<5x8xf32>, tensor<5x8xf32>) -> tensor<5x8xf32>
  return %loss, %nw, %ne : tensor<f32>, tensor<3x8xf32>, tensor<5x8xf32>
}
