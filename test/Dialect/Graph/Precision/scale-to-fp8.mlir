// RUN: cleave-opt %s --split-input-file --graph-mixed-precision=keep-chosen --graph-fp8="history=3 margin=1" | FileCheck %s
// RUN: not cleave-opt %s --graph-fp8=history=0 2>&1 | FileCheck %s --check-prefix=HISTORY
// RUN: not cleave-opt %s --graph-fp8=margin=-1 2>&1 | FileCheck %s --check-prefix=MARGIN

// HISTORY: the history of maxima must hold at least one step, got 0
// MARGIN: the margin of scales must be 0 to 100, got -1

// The first layer and both its gradients read 8 bits; the second one is the
// head. The input and the master are cast once, from f32.

// CHECK-LABEL: func.func @train(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<8x4xf32> {graph.name = "x"
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<4x4xf32> {graph.name = "w"
// CHECK-SAME: %[[XS:[a-z0-9]+]]: tensor<f32> {graph.name = "w.fp8_input_scale", graph.optional = "scales of fp8", graph.role = "state", graph.slot = "w.fp8_input_scale"}
// CHECK-SAME: %[[XH:[a-z0-9]+]]: tensor<3xf32> {graph.name = "w.fp8_input_amax_history", graph.optional = "scales of fp8", graph.role = "state"
// CHECK-SAME: %[[WS:[a-z0-9]+]]: tensor<f32> {graph.name = "w.fp8_weight_scale"
// CHECK-SAME: tensor<3xf32> {graph.name = "w.fp8_weight_amax_history"
// CHECK-SAME: tensor<f32> {graph.name = "w.fp8_gradient_scale"
// CHECK-SAME: tensor<3xf32> {graph.name = "w.fp8_gradient_amax_history"
// CHECK-NOT: graph.name
// CHECK-SAME: {graph.updates = "w.fp8_input_scale"}
// CHECK-SAME: {graph.updates = "w.fp8_input_amax_history"}

// A scale of zero is not set yet.
// CHECK-DAG: %[[UNSET:.*]] = graph.compare eq %[[XS]], %{{.*}} : (tensor<f32>, tensor<f32>) -> tensor<i1>
// CHECK-DAG: %[[S:.*]] = graph.select %[[UNSET]], %{{.*}}, %[[XS]]
// CHECK-DAG: %[[SX:.*]] = graph.mul %[[X]], %[[S]] : (tensor<8x4xf32>, tensor<f32>) -> tensor<8x4xf32>
// CHECK-DAG: %[[LOW:.*]] = graph.maximum %[[SX]], %{{.*}} : (tensor<8x4xf32>, tensor<f32>) -> tensor<8x4xf32>
// CHECK-DAG: %[[HIGH:.*]] = graph.minimum %[[LOW]], %{{.*}} : (tensor<8x4xf32>, tensor<f32>) -> tensor<8x4xf32>
// CHECK-DAG: %[[X8:.*]] = graph.cast %[[HIGH]] : (tensor<8x4xf32>) -> tensor<8x4xf8E4M3FN>
// CHECK-DAG: %[[SIZE:.*]] = graph.abs %[[X]]
// CHECK-DAG: %[[AMAX:.*]] = graph.reduce max %[[SIZE]] {dims = array<i64: 0, 1>} : (tensor<8x4xf32>) -> tensor<f32>
// CHECK-DAG: %[[WM:.*]] = graph.mul %[[W]], %{{.*}} : (tensor<4x4xf32>, tensor<f32>) -> tensor<4x4xf32>

// CHECK: %[[SUMS:.*]] = graph.linear %[[X8]], %[[W8:.*]] {result_element = f32} : (tensor<8x4xf8E4M3FN>, tensor<4x4xf8E4M3FN>) -> tensor<8x4xf32>
// CHECK: %[[Y:.*]] = graph.mul %[[SUMS]], %{{.*}} : (tensor<8x4xf32>, tensor<f32>) -> tensor<8x4xf32>
// CHECK: graph.add %[[Y]], %{{.*}} : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
// CHECK: graph.linear {{.*}} : (tensor<8x4xbf16>, tensor<2x4xbf16>) -> tensor<8x2xf32>
// CHECK: graph.cast {{.*}} : (tensor<8x4xf32>) -> tensor<8x4xf8E5M2>
// CHECK: graph.contract "bo,oi->bi" {{.*}} : (tensor<8x4xf8E5M2>, tensor<4x4xf8E4M3FN>) -> tensor<8x4xf32>
// CHECK: %[[DW:.*]] = graph.contract "bo,bi->oi" %{{.*}}, %[[X8]] {result_element = f32} : (tensor<8x4xf8E5M2>, tensor<8x4xf8E4M3FN>) -> tensor<4x4xf32>
// CHECK: %[[DIVIDED:.*]] = graph.mul %[[DW]], %{{.*}} : (tensor<4x4xf32>, tensor<f32>) -> tensor<4x4xf32>
// CHECK: graph.gradient %[[DIVIDED]] of "w"

// The maximum of this step comes last, the oldest goes; 448 / 2 is the largest
// number with this margin.
// CHECK: %[[OLD:.*]] = graph.slice %[[XH]]
// CHECK: %[[BEFORE:.*]] = graph.reduce max %[[OLD]]
// CHECK: %[[MOST:.*]] = graph.maximum %[[BEFORE]], %[[AMAX]]
// CHECK: %[[NEW:.*]] = graph.concat %[[OLD]], %{{.*}} {dim = 0 : i64} : (tensor<2xf32>, tensor<1xf32>) -> tensor<3xf32>
// CHECK: %[[TARGET:.*]] = graph.constant dense<2.240000e+02> : tensor<f32>
// CHECK: %[[SCALE:.*]] = graph.div %[[TARGET]], %[[MOST]]
// CHECK: %[[NEXT:.*]] = graph.select %{{.*}}, %[[SCALE]], %[[S]]
// CHECK: graph.written %[[NEXT]] of "w.fp8_input_scale"
// CHECK: graph.written %[[NEW]] of "w.fp8_input_amax_history"
func.func @train(%x: tensor<8x4xf32> {graph.name = "x", graph.role = "input"},
                 %w: tensor<4x4xf32> {graph.name = "w", graph.role = "parameter"},
                 %b: tensor<4xf32> {graph.name = "b", graph.role = "parameter"},
                 %v: tensor<2x4xf32> {graph.name = "v", graph.role = "parameter"})
    -> (tensor<f32>, tensor<4x4xf32>, tensor<8x4xf32>) {
  %y = graph.linear %x, %w bias %b : (tensor<8x4xf32>, tensor<4x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
  %z = graph.linear %y, %v : (tensor<8x4xf32>, tensor<2x4xf32>) -> tensor<8x2xf32>
  %loss = graph.reduce sum %z {dims = array<i64: 0, 1>} : (tensor<8x2xf32>) -> tensor<f32>
  %one = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  %dz = graph.broadcast %one : (tensor<f32>) -> tensor<8x2xf32>
  %dy = graph.contract "bo,oi->bi" %dz, %v : (tensor<8x2xf32>, tensor<2x4xf32>) -> tensor<8x4xf32>
  %dx = graph.contract "bo,oi->bi" %dy, %w : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %dw = graph.contract "bo,bi->oi" %dy, %x : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %g = graph.gradient %dw of "w" : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %loss, %g, %dx : tensor<f32>, tensor<4x4xf32>, tensor<8x4xf32>
}
