// RUN: cleave-opt %s --split-input-file --graph-differentiate --graph-chunk-loss=max-chunk-bytes=65536 | FileCheck %s
// RUN: cleave-opt %s --split-input-file --graph-differentiate --graph-chunk-loss="max-chunk-bytes=131072 max-chunk-rows=65" | FileCheck %s
// RUN: cleave-opt %s --split-input-file --graph-differentiate --graph-chunk-loss | FileCheck %s --check-prefix=WHOLE
// RUN: not cleave-opt %s --split-input-file --graph-chunk-loss=max-chunk-bytes=0 2>&1 | FileCheck %s --check-prefix=BYTES
// RUN: not cleave-opt %s --split-input-file --graph-chunk-loss=max-chunk-rows=0 2>&1 | FileCheck %s --check-prefix=LEAST

// BYTES: error: max-chunk-bytes must be positive
// LEAST: error: max-chunk-rows must be positive

// Head, loss and both gradients are one op. The seed no longer reads the loss,
// which is now computed behind it. 200 rows of 1024 bytes: 64 fit, in four chunks.
// The tied weight's gradient is added to that of the embedding.

// CHECK-LABEL: func.func @loss(
// CHECK: %[[L0:.*]] = graph.head_loss %{{.*}}, %{{.*}} targets %{{.*}} {chunk_rows = 64 : i64} : (tensor<200x4xf32>, tensor<256x4xf32>, tensor<200xi64>) -> tensor<200xf32>
// CHECK-NOT: graph.linear
// CHECK: graph.reduce sum %[[L0]]
// CHECK-LABEL: func.func @train(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<256x4xf32>
// CHECK: %[[X:.*]] = graph.gather %[[W]]
// CHECK-NOT: graph.linear
// CHECK: %[[COUNT:.*]] = graph.reduce sum %{{.*}} : (tensor<200xf32>) -> tensor<f32>
// CHECK: %[[ZERO:.*]] = graph.constant dense<0.000000e+00> : tensor<f32>
// CHECK: %[[S:.*]] = graph.seed %[[ZERO]]
// CHECK: %[[G0:.*]] = graph.div %[[S]], %[[COUNT]]
// CHECK: %[[G:.*]] = graph.broadcast %[[G0]]
// CHECK: %[[ROWS:.*]] = graph.reshape %[[X]] : (tensor<2x100x4xf32>) -> tensor<200x4xf32>
// CHECK: %[[L:.*]], %[[D:.*]]:2 = graph.head_loss %[[ROWS]], %[[W]] targets %{{.*}} gradient %[[G]] {chunk_rows = 64 : i64}
// CHECK: %[[SUM:.*]] = graph.reduce sum %[[L]]
// CHECK: %[[MEAN:.*]] = graph.div %[[SUM]], %[[COUNT]]
// CHECK: %[[DX:.*]] = graph.reshape %[[D]]#0 : (tensor<200x4xf32>) -> tensor<2x100x4xf32>
// CHECK-NOT: graph.contract
// CHECK: %[[DE:.*]] = graph.scatter_add %[[DX]]
// CHECK: %[[DW:.*]] = graph.add %[[D]]#1, %[[DE]]
// CHECK: graph.gradient %[[DW]] of "w"
// CHECK: return %[[MEAN]],

// WHOLE-LABEL: func.func @train(
// WHOLE: graph.head_loss {{.*}} {chunk_rows = 200 : i64}
func.func @loss(
    %w: tensor<256x4xf32> {graph.name = "w", graph.role = "parameter", graph.aliases = ["head"]},
    %ids: tensor<2x100xi64> {graph.name = "ids", graph.role = "input"},
    %t: tensor<200xi64> {graph.name = "t", graph.role = "input"}) -> (tensor<f32> {graph.name = "loss"}) {
  %x = graph.gather %w, %ids {dim = 0 : i64} : (tensor<256x4xf32>, tensor<2x100xi64>) -> tensor<2x100x4xf32>
  %l3 = graph.linear %x, %w : (tensor<2x100x4xf32>, tensor<256x4xf32>) -> tensor<2x100x256xf32>
  %l = graph.reshape %l3 : (tensor<2x100x256xf32>) -> tensor<200x256xf32>
  %rows, %lse = graph.cross_entropy %l, %t : (tensor<200x256xf32>, tensor<200xi64>) -> (tensor<200xf32>, tensor<200xf32>)
  %sum = graph.reduce sum %rows {dims = array<i64: 0>} : (tensor<200xf32>) -> tensor<f32>
  %ignore = graph.constant dense<-100> : tensor<i64>
  %valid = graph.compare ne %t, %ignore : (tensor<200xi64>, tensor<i64>) -> tensor<200xi1>
  %ones = graph.cast %valid : (tensor<200xi1>) -> tensor<200xf32>
  %count = graph.reduce sum %ones {dims = array<i64: 0>} : (tensor<200xf32>) -> tensor<f32>
  %loss = graph.div %sum, %count : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %loss : tensor<f32>
}

// -----

// With a bias, and as a contraction's equation; label smoothing is kept. What is
// frozen has no reader.

// CHECK-LABEL: func.func @train(
// CHECK: %{{.*}}, %[[E:.*]]:2 = graph.head_loss
// CHECK-NOT: graph.contract
// CHECK: graph.gradient %[[E]]#1 of "v"
// CHECK: %{{.*}}, %[[D:.*]]:3 = graph.head_loss %{{.*}}, %{{.*}} bias %{{.*}} targets %{{.*}} gradient %{{.*}} {chunk_rows = 6 : i64, ignore_index = 0 : i64, label_smoothing = 1.000000e-01 : f64}
// CHECK-NOT: graph.contract
// CHECK: graph.gradient %[[D]]#2 of "b"
func.func @loss(
    %w: tensor<7x4xf32> {graph.name = "w", graph.role = "parameter", graph.frozen},
    %b: tensor<7xf32> {graph.name = "b", graph.role = "parameter"},
    %v: tensor<3x4xf32> {graph.name = "v", graph.role = "parameter"},
    %x: tensor<2x3x4xf32> {graph.name = "x", graph.role = "input"},
    %t: tensor<2x3xi64> {graph.name = "t", graph.role = "input"}) -> tensor<f32> {
  %l = graph.linear %x, %w bias %b : (tensor<2x3x4xf32>, tensor<7x4xf32>, tensor<7xf32>) -> tensor<2x3x7xf32>
  %rows, %lse = graph.cross_entropy %l, %t {ignore_index = 0 : i64, label_smoothing = 0.1 : f64} : (tensor<2x3x7xf32>, tensor<2x3xi64>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
  %sum = graph.reduce sum %rows {dims = array<i64: 0, 1>} : (tensor<2x3xf32>) -> tensor<f32>
  %l1 = graph.contract "vh,bsh->bsv" %v, %x : (tensor<3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x3xf32>
  %rows1, %lse1 = graph.cross_entropy %l1, %t : (tensor<2x3x3xf32>, tensor<2x3xi64>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
  %sum1 = graph.reduce sum %rows1 {dims = array<i64: 0, 1>} : (tensor<2x3xf32>) -> tensor<f32>
  %loss = graph.add %sum, %sum1 : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %loss : tensor<f32>
}

// -----

// The gradient of the rows depends on the loss: the logits are needed first.

// CHECK-LABEL: func.func @train(
// CHECK-NOT: graph.head_loss
// CHECK: graph.cross_entropy_grad
// CHECK-NOT: graph.head_loss
func.func @loss(
    %w: tensor<7x4xf32> {graph.name = "w", graph.role = "parameter"},
    %x: tensor<6x4xf32> {graph.name = "x", graph.role = "input"},
    %t: tensor<6xi64> {graph.name = "t", graph.role = "input"}) -> tensor<f32> {
  %l = graph.linear %x, %w : (tensor<6x4xf32>, tensor<7x4xf32>) -> tensor<6x7xf32>
  %rows, %lse = graph.cross_entropy %l, %t : (tensor<6x7xf32>, tensor<6xi64>) -> (tensor<6xf32>, tensor<6xf32>)
  %sum = graph.reduce sum %rows {dims = array<i64: 0>} : (tensor<6xf32>) -> tensor<f32>
  %loss = graph.exp %sum : (tensor<f32>) -> tensor<f32>
  return %loss : tensor<f32>
}

// -----

// The logits are read elsewhere, forward or backward.

// CHECK-LABEL: func.func @train(
// CHECK-NOT: graph.head_loss
// CHECK: return
func.func @loss(
    %w: tensor<7x4xf32> {graph.name = "w", graph.role = "parameter"},
    %x: tensor<6x4xf32> {graph.name = "x", graph.role = "input"},
    %t: tensor<6xi64> {graph.name = "t", graph.role = "input"}) -> (tensor<f32>, tensor<6x7xf32>) {
  %l = graph.linear %x, %w : (tensor<6x4xf32>, tensor<7x4xf32>) -> tensor<6x7xf32>
  %rows, %lse = graph.cross_entropy %l, %t : (tensor<6x7xf32>, tensor<6xi64>) -> (tensor<6xf32>, tensor<6xf32>)
  %sum = graph.reduce sum %rows {dims = array<i64: 0>} : (tensor<6xf32>) -> tensor<f32>
  return %sum, %l : tensor<f32>, tensor<6x7xf32>
}

// -----

// CHECK-LABEL: func.func @train(
// CHECK-NOT: graph.head_loss
// CHECK: return
func.func @loss(
    %w: tensor<7x4xf32> {graph.name = "w", graph.role = "parameter"},
    %x: tensor<6x4xf32> {graph.name = "x", graph.role = "input"},
    %t: tensor<6xi64> {graph.name = "t", graph.role = "input"}) -> tensor<f32> {
  %l = graph.linear %x, %w : (tensor<6x4xf32>, tensor<7x4xf32>) -> tensor<6x7xf32>
  %rows, %lse = graph.cross_entropy %l, %t : (tensor<6x7xf32>, tensor<6xi64>) -> (tensor<6xf32>, tensor<6xf32>)
  %z = graph.mul %lse, %lse : (tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>
  %both = graph.add %rows, %z : (tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>
  %sum = graph.reduce sum %both {dims = array<i64: 0>} : (tensor<6xf32>) -> tensor<f32>
  return %sum : tensor<f32>
}
