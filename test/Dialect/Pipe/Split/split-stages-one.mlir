// RUN: cleave-opt %s --spmd-seed-shardings=micro-batches=1 --spmd-propagate --spmd-partition --spmd-verify --pipe-split-stages --pipe-schedule --pipe-verify | FileCheck %s
// RUN: cleave-opt %s --spmd-seed-shardings=micro-batches=1 --spmd-propagate --spmd-partition --spmd-verify --pipe-split-stages=fusion=none --pipe-schedule --pipe-verify | FileCheck %s --check-prefix=NONE
// RUN: not cleave-opt %s --spmd-seed-shardings=micro-batches=1 --spmd-propagate --spmd-partition --spmd-verify --pipe-split-stages=fusion=backward 2>&1 | FileCheck %s --check-prefix=REFUSED
// RUN: not cleave-opt %s --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-verify --pipe-split-stages=fusion=backward 2>&1 | FileCheck %s --check-prefix=SEVERAL
// RUN: not cleave-opt %s --spmd-seed-shardings=micro-batches=1 --spmd-propagate --spmd-partition --spmd-verify --pipe-split-stages=fusion=sideways 2>&1 | FileCheck %s --check-prefix=UNKNOWN

// With one micro-batch nothing is summed ahead, and an update runs in backward,
// behind its gradient.

// CHECK-LABEL: pipe.program @separate(
// CHECK-SAME: pipe.optimizer_fusion = "backward"
// CHECK-SAME: schedule = "F0 B0"
// CHECK: pipe.invoke @separate.F({{.*}} results = ["saved", "accumulate"]
// CHECK: pipe.invoke @separate.B({{.*}} results = ["value", "value"]
// CHECK-LABEL: func.func private @separate.B(
// CHECK: graph.gradient %{{.*}} of "w"
// CHECK-NEXT: graph.sub
// CHECK: graph.gradient %{{.*}} of "v"
// CHECK-NEXT: graph.sub

// Asked to be apart, it is.
// NONE-LABEL: pipe.program @separate(
// NONE-SAME: pipe.optimizer_fusion = "none: it was asked to be apart"
// NONE-SAME: schedule = "F0 B0 U"
// NONE-LABEL: func.func private @separate.B(
// NONE-NOT: graph.sub
// NONE-LABEL: func.func private @separate.U(
// NONE-COUNT-2: graph.sub
// REFUSED: split-stages-one.mlir:{{[0-9]+}}:11: error: optimizer fusion into backward is not possible: graph.global_norm reads the gradients of several parameters
// SEVERAL: split-stages-one.mlir:{{[0-9]+}}:1: error: optimizer fusion into backward is not possible: each gradient is complete only with the last of 2 micro-batches
// UNKNOWN: error: fusion must be auto, none or backward, got 'sideways'
func.func @separate(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                    %v: tensor<4xf32> {graph.name = "v", graph.role = "parameter"},
                    %x: tensor<6x4xf32> {graph.batch_dim = 0 : i64})
    -> (tensor<f32>, tensor<4xf32>, tensor<4xf32>) {
  %h = graph.exp %x : (tensor<6x4xf32>) -> tensor<6x4xf32>
  %a = graph.mul %h, %w : (tensor<6x4xf32>, tensor<4xf32>) -> tensor<6x4xf32>
  %b = graph.mul %a, %v : (tensor<6x4xf32>, tensor<4xf32>) -> tensor<6x4xf32>
  %loss = graph.reduce sum %b {dims = array<i64: 0, 1>} : (tensor<6x4xf32>) -> tensor<f32>
  %seed = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  %c = graph.mul %h, %seed : (tensor<6x4xf32>, tensor<f32>) -> tensor<6x4xf32>
  %dw = graph.reduce sum %c {dims = array<i64: 0>} : (tensor<6x4xf32>) -> tensor<4xf32>
  %gw = graph.gradient %dw of "w" : (tensor<4xf32>) -> tensor<4xf32>
  %w1 = graph.sub %w, %gw : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %d = graph.neg %c : (tensor<6x4xf32>) -> tensor<6x4xf32>
  %dv = graph.reduce sum %d {dims = array<i64: 0>} : (tensor<6x4xf32>) -> tensor<4xf32>
  %gv = graph.gradient %dv of "v" : (tensor<4xf32>) -> tensor<4xf32>
  %v1 = graph.sub %v, %gv : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %loss, %w1, %v1 : tensor<f32>, tensor<4xf32>, tensor<4xf32>
}

// A norm reads every gradient: the update stands apart.
// CHECK-LABEL: pipe.program @clipped(
// CHECK-SAME: pipe.optimizer_fusion = "none: graph.global_norm reads
// CHECK-SAME: schedule = "F0 B0 U"
// CHECK-LABEL: func.func private @clipped.U(
// CHECK: graph.global_norm
func.func @clipped(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                   %v: tensor<4xf32> {graph.name = "v", graph.role = "parameter"},
                   %x: tensor<6x4xf32> {graph.batch_dim = 0 : i64})
    -> (tensor<f32>, tensor<4xf32>, tensor<4xf32>) {
  %loss = graph.reduce sum %x {dims = array<i64: 0, 1>} : (tensor<6x4xf32>) -> tensor<f32>
  %seed = graph.seed %loss : (tensor<f32>) -> tensor<f32>
  %c = graph.mul %x, %seed : (tensor<6x4xf32>, tensor<f32>) -> tensor<6x4xf32>
  %d = graph.reduce sum %c {dims = array<i64: 0>} : (tensor<6x4xf32>) -> tensor<4xf32>
  %gw = graph.gradient %d of "w" : (tensor<4xf32>) -> tensor<4xf32>
  %gv = graph.gradient %d of "v" : (tensor<4xf32>) -> tensor<4xf32>
  %norm = graph.global_norm %gw, %gv : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  %sw = graph.div %gw, %norm : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %w1 = graph.sub %w, %sw : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %loss, %w1, %v : tensor<f32>, tensor<4xf32>, tensor<4xf32>
}
