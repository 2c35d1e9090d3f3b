// RUN: cleave-opt %s --split-input-file --graph-factor-parameters | FileCheck %s
// RUN: cleave-opt %s --split-input-file --graph-factor-parameters --graph-factor-parameters | FileCheck %s

// A fused projection: three equal slices, each reshaped to heads. In the other
// entry, which only sums the weight, a reshape gives it back.

// CHECK-LABEL: func.func @loss(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<5x8xf32>
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<3x2x4x8xf32> {graph.framework_shape = array<i64: 24, 8>, graph.name = "w", graph.role = "parameter"}
// CHECK-SAME: %[[B:[a-z0-9]+]]: tensor<3x2x4xf32> {graph.framework_shape = array<i64: 24>, graph.name = "b"
// CHECK-NEXT: %[[C:.*]] = graph.contract "AY,abcY->Aabc" %[[X]], %[[W]] : (tensor<5x8xf32>, tensor<3x2x4x8xf32>) -> tensor<5x3x2x4xf32>
// CHECK-NEXT: %[[Y:.*]] = graph.add %[[C]], %[[B]] : (tensor<5x3x2x4xf32>, tensor<3x2x4xf32>) -> tensor<5x3x2x4xf32>
// CHECK-NEXT: %[[S:.*]] = graph.slice %[[Y]] {offsets = array<i64: 0, 2, 0, 0>, sizes = array<i64: 5, 1, 2, 4>, strides = array<i64: 1, 1, 1, 1>}
// CHECK-NEXT: %[[V:.*]] = graph.reshape %[[S]] : (tensor<5x1x2x4xf32>) -> tensor<5x2x4xf32>
// CHECK-NEXT: return %[[V]]
// CHECK-LABEL: func.func @norm(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<3x2x4x8xf32> {graph.framework_shape = array<i64: 24, 8>
// CHECK-NEXT: %[[R:.*]] = graph.reshape %[[W]] : (tensor<3x2x4x8xf32>) -> tensor<24x8xf32>
// CHECK-NEXT: graph.reduce sum %[[R]]
func.func @loss(
    %x: tensor<5x8xf32> {graph.name = "x", graph.role = "input"},
    %w: tensor<24x8xf32> {graph.name = "w", graph.role = "parameter"},
    %b: tensor<24xf32> {graph.name = "b", graph.role = "parameter"}) -> tensor<5x2x4xf32> {
  %0 = graph.linear %x, %w bias %b : (tensor<5x8xf32>, tensor<24x8xf32>, tensor<24xf32>) -> tensor<5x24xf32>
  %1 = graph.slice %0 {offsets = array<i64: 0, 16>, sizes = array<i64: 5, 8>, strides = array<i64: 1, 1>} : (tensor<5x24xf32>) -> tensor<5x8xf32>
  %2 = graph.reshape %1 : (tensor<5x8xf32>) -> tensor<5x2x4xf32>
  return %2 : tensor<5x2x4xf32>
}
func.func @norm(%w: tensor<24x8xf32> {graph.name = "w", graph.role = "parameter"}) -> tensor<f32> {
  %0 = graph.reduce sum %w {dims = array<i64: 0, 1>} : (tensor<24x8xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// The two halves of gated experts: a factor of their own. One half alone (v) is a
// part of what may be read elsewhere.

// CHECK-LABEL: func.func @loss(
// CHECK-SAME: tensor<4x2x5x8xf32> {graph.framework_shape = array<i64: 4, 10, 8>, graph.name = "w"
// CHECK-SAME: tensor<10x8xf32> {graph.name = "v"
// CHECK-NEXT: %[[Y:.*]] = graph.contract "gech,eabh->gecab" %{{.*}}, %{{.*}} : (tensor<3x4x6x8xf32>, tensor<4x2x5x8xf32>) -> tensor<3x4x6x2x5xf32>
// CHECK-NEXT: %[[G:.*]] = graph.slice %[[Y]] {offsets = array<i64: 0, 0, 0, 0, 0>, sizes = array<i64: 3, 4, 6, 1, 5>
// CHECK-NEXT: %[[GATE:.*]] = graph.reshape %[[G]] : (tensor<3x4x6x1x5xf32>) -> tensor<3x4x6x5xf32>
// CHECK-NEXT: %[[U:.*]] = graph.slice %[[Y]] {offsets = array<i64: 0, 0, 0, 1, 0>
// CHECK-NEXT: %[[UP:.*]] = graph.reshape %[[U]]
// CHECK-NEXT: %[[S:.*]] = graph.silu %[[GATE]]
// CHECK-NEXT: graph.mul %[[S]], %[[UP]]
func.func @loss(
    %x: tensor<3x4x6x8xf32> {graph.name = "x", graph.role = "input"},
    %w: tensor<4x10x8xf32> {graph.name = "w", graph.role = "parameter"},
    %v: tensor<10x8xf32> {graph.name = "v", graph.role = "parameter"}) -> (tensor<3x4x6x5xf32>, tensor<3x4x6x5xf32>) {
  %0 = graph.contract "gech,eoh->geco" %x, %w : (tensor<3x4x6x8xf32>, tensor<4x10x8xf32>) -> tensor<3x4x6x10xf32>
  %1 = graph.slice %0 {offsets = array<i64: 0, 0, 0, 0>, sizes = array<i64: 3, 4, 6, 5>, strides = array<i64: 1, 1, 1, 1>} : (tensor<3x4x6x10xf32>) -> tensor<3x4x6x5xf32>
  %2 = graph.slice %0 {offsets = array<i64: 0, 0, 0, 5>, sizes = array<i64: 3, 4, 6, 5>, strides = array<i64: 1, 1, 1, 1>} : (tensor<3x4x6x10xf32>) -> tensor<3x4x6x5xf32>
  %3 = graph.silu %1 : (tensor<3x4x6x5xf32>) -> tensor<3x4x6x5xf32>
  %4 = graph.mul %3, %2 : (tensor<3x4x6x5xf32>, tensor<3x4x6x5xf32>) -> tensor<3x4x6x5xf32>
  %5 = graph.linear %x, %v : (tensor<3x4x6x8xf32>, tensor<10x8xf32>) -> tensor<3x4x6x10xf32>
  %6 = graph.slice %5 {offsets = array<i64: 0, 0, 0, 5>, sizes = array<i64: 3, 4, 6, 5>, strides = array<i64: 1, 1, 1, 1>} : (tensor<3x4x6x10xf32>) -> tensor<3x4x6x5xf32>
  return %4, %6 : tensor<3x4x6x5xf32>, tensor<3x4x6x5xf32>
}

// -----

// The same of rows that have the weights of their group. In the matrix that rows
// are multiplied by, a feature of one half is beside that of the other.

// CHECK-LABEL: func.func @loss(
// CHECK-SAME: tensor<4x2x5x8xf32> {graph.framework_shape = array<i64: 4, 10, 8>, graph.name = "w"
// CHECK: %[[T:.*]] = graph.transpose %{{.*}} {permutation = array<i64: 0, 2, 1, 3>} : (tensor<4x2x5x8xf32>) -> tensor<4x5x2x8xf32>
// CHECK-NEXT: %[[W:.*]] = graph.reshape %[[T]] : (tensor<4x5x2x8xf32>) -> tensor<4x10x8xf32>
// CHECK-NEXT: %[[Y:.*]] = graph.grouped_linear %{{.*}}, %[[W]], %{{.*}} {transpose} : (tensor<3x6x8xf32>, tensor<4x10x8xf32>, tensor<3x6xi64>) -> tensor<3x6x10xf32>
// CHECK-NEXT: %[[F:.*]] = graph.reshape %[[Y]] : (tensor<3x6x10xf32>) -> tensor<3x6x5x2xf32>
// CHECK-NEXT: %[[H:.*]] = graph.transpose %[[F]] {permutation = array<i64: 0, 1, 3, 2>} : (tensor<3x6x5x2xf32>) -> tensor<3x6x2x5xf32>
// CHECK-NEXT: %[[G:.*]] = graph.slice %[[H]] {offsets = array<i64: 0, 0, 0, 0>, sizes = array<i64: 3, 6, 1, 5>
// CHECK-NEXT: graph.reshape %[[G]] : (tensor<3x6x1x5xf32>) -> tensor<3x6x5xf32>
// CHECK-NEXT: graph.slice %[[H]] {offsets = array<i64: 0, 0, 1, 0>
func.func @loss(
    %x: tensor<3x6x8xf32> {graph.name = "x", graph.role = "input"},
    %w: tensor<4x10x8xf32> {graph.name = "w", graph.role = "parameter"},
    %i: tensor<3x6xi64> {graph.name = "i", graph.role = "input"}) -> tensor<3x6x5xf32> {
  %0 = graph.grouped_linear %x, %w, %i {transpose} : (tensor<3x6x8xf32>, tensor<4x10x8xf32>, tensor<3x6xi64>) -> tensor<3x6x10xf32>
  %1 = graph.slice %0 {offsets = array<i64: 0, 0, 0>, sizes = array<i64: 3, 6, 5>, strides = array<i64: 1, 1, 1>} : (tensor<3x6x10xf32>) -> tensor<3x6x5xf32>
  %2 = graph.slice %0 {offsets = array<i64: 0, 0, 5>, sizes = array<i64: 3, 6, 5>, strides = array<i64: 1, 1, 1>} : (tensor<3x6x10xf32>) -> tensor<3x6x5xf32>
  %3 = graph.silu %1 : (tensor<3x6x5xf32>) -> tensor<3x6x5xf32>
  %4 = graph.mul %3, %2 : (tensor<3x6x5xf32>, tensor<3x6x5xf32>) -> tensor<3x6x5xf32>
  return %4 : tensor<3x6x5xf32>
}

// -----

// Grouped heads: slices of four, two and two heads share one factor. The weight
// stands as [i, o], and its bias is added behind.

// CHECK-LABEL: func.func @loss(
// CHECK-SAME: tensor<8x8x4xf32> {graph.framework_shape = array<i64: 8, 32>, graph.name = "w"
// CHECK-SAME: tensor<8x4xf32> {graph.framework_shape = array<i64: 32>, graph.name = "b"
// CHECK-NEXT: %[[C:.*]] = graph.contract "bsh,hac->bsac"
// CHECK-NEXT: %[[Y:.*]] = graph.add %[[C]], %{{.*}}
// CHECK-DAG: %[[Q:.*]] = graph.slice %[[Y]] {offsets = array<i64: 0, 0, 0, 0>, sizes = array<i64: 1, 5, 4, 4>, strides = array<i64: 1, 1, 1, 1>}
// CHECK-DAG: %[[K:.*]] = graph.slice %[[Y]] {offsets = array<i64: 0, 0, 4, 0>, sizes = array<i64: 1, 5, 2, 4>, strides = array<i64: 1, 1, 1, 1>}
// CHECK-DAG: %[[V:.*]] = graph.slice %[[Y]] {offsets = array<i64: 0, 0, 6, 0>, sizes = array<i64: 1, 5, 2, 4>, strides = array<i64: 1, 1, 1, 1>}
// CHECK: return %[[Q]], %[[K]], %[[V]]
func.func @loss(
    %x: tensor<1x5x8xf32> {graph.name = "x", graph.role = "input"},
    %w: tensor<8x32xf32> {graph.name = "w", graph.role = "parameter"},
    %b: tensor<32xf32> {graph.name = "b", graph.role = "parameter"}) -> (tensor<1x5x4x4xf32>, tensor<1x5x2x4xf32>, tensor<1x5x2x4xf32>) {
  %0 = graph.contract "bsh,ho->bso" %x, %w : (tensor<1x5x8xf32>, tensor<8x32xf32>) -> tensor<1x5x32xf32>
  %1 = graph.add %0, %b : (tensor<1x5x32xf32>, tensor<32xf32>) -> tensor<1x5x32xf32>
  %q0 = graph.slice %1 {offsets = array<i64: 0, 0, 0>, sizes = array<i64: 1, 5, 16>, strides = array<i64: 1, 1, 1>} : (tensor<1x5x32xf32>) -> tensor<1x5x16xf32>
  %k0 = graph.slice %1 {offsets = array<i64: 0, 0, 16>, sizes = array<i64: 1, 5, 8>, strides = array<i64: 1, 1, 1>} : (tensor<1x5x32xf32>) -> tensor<1x5x8xf32>
  %v0 = graph.slice %1 {offsets = array<i64: 0, 0, 24>, sizes = array<i64: 1, 5, 8>, strides = array<i64: 1, 1, 1>} : (tensor<1x5x32xf32>) -> tensor<1x5x8xf32>
  %q = graph.reshape %q0 : (tensor<1x5x16xf32>) -> tensor<1x5x4x4xf32>
  %k = graph.reshape %k0 : (tensor<1x5x8xf32>) -> tensor<1x5x2x4xf32>
  %v = graph.reshape %v0 : (tensor<1x5x8xf32>) -> tensor<1x5x2x4xf32>
  return %q, %k, %v : tensor<1x5x4x4xf32>, tensor<1x5x2x4xf32>, tensor<1x5x2x4xf32>
}

// -----

// One projection into the next: both are factored, the second reads the first.

// CHECK-LABEL: func.func @loss(
// CHECK: %[[A:.*]] = graph.contract "AY,abY->Aab" %{{.*}} -> tensor<5x2x4xf32>
// CHECK: graph.contract "ABY,abY->ABab" %[[A]], %{{.*}} -> tensor<5x2x2x3xf32>
func.func @loss(
    %x: tensor<5x8xf32> {graph.name = "x", graph.role = "input"},
    %w: tensor<8x8xf32> {graph.name = "w", graph.role = "parameter"},
    %v: tensor<6x4xf32> {graph.name = "v", graph.role = "parameter"}) -> tensor<5x2x2x3xf32> {
  %0 = graph.linear %x, %w : (tensor<5x8xf32>, tensor<8x8xf32>) -> tensor<5x8xf32>
  %1 = graph.reshape %0 : (tensor<5x8xf32>) -> tensor<5x2x4xf32>
  %2 = graph.linear %1, %v : (tensor<5x2x4xf32>, tensor<6x4xf32>) -> tensor<5x2x6xf32>
  %3 = graph.reshape %2 : (tensor<5x2x6xf32>) -> tensor<5x2x2x3xf32>
  return %3 : tensor<5x2x2x3xf32>
}

// -----

// Nothing is factored: features read as they are too; readers that disagree; a
// slice across heads; rows that are joined; a buffer.

// CHECK-LABEL: func.func @loss(
// CHECK-NOT: framework_shape
// CHECK-NOT: graph.contract
// CHECK: return
func.func @loss(
    %x: tensor<6x8xf32> {graph.name = "x", graph.role = "input"},
    %w0: tensor<8x8xf32> {graph.name = "w0", graph.role = "parameter"},
    %w1: tensor<8x8xf32> {graph.name = "w1", graph.role = "parameter"},
    %w2: tensor<8x8xf32> {graph.name = "w2", graph.role = "parameter"},
    %w3: tensor<8x8xf32> {graph.name = "w3", graph.role = "parameter"},
    %w4: tensor<8x8xf32> {graph.name = "w4", graph.role = "buffer"})
    -> (tensor<6x8xf32>, tensor<6x2x4xf32>, tensor<6x4x2xf32>, tensor<6x2x4xf32>, tensor<6x2x2xf32>, tensor<3x2x8xf32>, tensor<6x2x4xf32>) {
  %0 = graph.linear %x, %w0 : (tensor<6x8xf32>, tensor<8x8xf32>) -> tensor<6x8xf32>
  %1 = graph.reshape %0 : (tensor<6x8xf32>) -> tensor<6x2x4xf32>
  %2 = graph.linear %x, %w1 : (tensor<6x8xf32>, tensor<8x8xf32>) -> tensor<6x8xf32>
  %3 = graph.reshape %2 : (tensor<6x8xf32>) -> tensor<6x4x2xf32>
  %4 = graph.reshape %2 : (tensor<6x8xf32>) -> tensor<6x2x4xf32>
  %5 = graph.linear %x, %w2 : (tensor<6x8xf32>, tensor<8x8xf32>) -> tensor<6x8xf32>
  %6 = graph.slice %5 {offsets = array<i64: 0, 2>, sizes = array<i64: 6, 4>, strides = array<i64: 1, 1>} : (tensor<6x8xf32>) -> tensor<6x4xf32>
  %7 = graph.reshape %6 : (tensor<6x4xf32>) -> tensor<6x2x2xf32>
  %8 = graph.linear %x, %w3 : (tensor<6x8xf32>, tensor<8x8xf32>) -> tensor<6x8xf32>
  %9 = graph.reshape %8 : (tensor<6x8xf32>) -> tensor<3x2x8xf32>
  %10 = graph.linear %x, %w4 : (tensor<6x8xf32>, tensor<8x8xf32>) -> tensor<6x8xf32>
  %11 = graph.reshape %10 : (tensor<6x8xf32>) -> tensor<6x2x4xf32>
  return %0, %1, %3, %4, %7, %9, %11 : tensor<6x8xf32>, tensor<6x2x4xf32>, tensor<6x4x2xf32>, tensor<6x2x4xf32>, tensor<6x2x2xf32>, tensor<3x2x8xf32>, tensor<6x2x4xf32>
}

// -----

// Entries that disagree leave the parameter as it is.

// CHECK-LABEL: func.func @loss(
// CHECK: graph.linear
// CHECK-LABEL: func.func @logits(
// CHECK: graph.linear
func.func @loss(%x: tensor<5x8xf32>, %w: tensor<8x8xf32> {graph.name = "w", graph.role = "parameter"}) -> tensor<5x2x4xf32> {
  %0 = graph.linear %x, %w : (tensor<5x8xf32>, tensor<8x8xf32>) -> tensor<5x8xf32>
  %1 = graph.reshape %0 : (tensor<5x8xf32>) -> tensor<5x2x4xf32>
  return %1 : tensor<5x2x4xf32>
}
func.func @logits(%x: tensor<5x8xf32>, %w: tensor<8x8xf32> {graph.name = "w", graph.role = "parameter"}) -> tensor<5x4x2xf32> {
  %0 = graph.linear %x, %w : (tensor<5x8xf32>, tensor<8x8xf32>) -> tensor<5x8xf32>
  %1 = graph.reshape %0 : (tensor<5x8xf32>) -> tensor<5x4x2xf32>
  return %1 : tensor<5x4x2xf32>
}
