// RUN: cleave-opt %s --pass-pipeline='builtin.module(func.func(exec-join-blocks))' | FileCheck %s

// The largest of the largest of eight parts is that of a block.

// CHECK-LABEL: func.func @largest(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<6x32x64xf32>
// CHECK-NEXT: %[[R:.*]] = graph.reshape %[[X]] : (tensor<6x32x64xf32>) -> tensor<6x4x8x64xf32>
// CHECK-NEXT: %[[M:.*]] = graph.reduce max %[[R]] {dims = array<i64: 2, 3>} : (tensor<6x4x8x64xf32>) -> tensor<6x4xf32>
// CHECK-NEXT: return %[[M]]
func.func @largest(%x: tensor<6x32x64xf32>) -> tensor<6x4xf32> {
  %0 = graph.reduce max %x {dims = array<i64: 2>} : (tensor<6x32x64xf32>) -> tensor<6x32xf32>
  %1 = graph.reshape %0 : (tensor<6x32xf32>) -> tensor<6x4x8xf32>
  %2 = graph.reduce max %1 {dims = array<i64: 2>} : (tensor<6x4x8xf32>) -> tensor<6x4xf32>
  return %2 : tensor<6x4xf32>
}

// The order of a sum stays, and so do parts that something else reads, other
// reductions of them, and a reduction of dimensions before others.

// CHECK-LABEL: func.func @sum(
// CHECK-COUNT-2: graph.reduce sum
func.func @sum(%x: tensor<32x64xf32>) -> tensor<4xf32> {
  %0 = graph.reduce sum %x {dims = array<i64: 1>} : (tensor<32x64xf32>) -> tensor<32xf32>
  %1 = graph.reshape %0 : (tensor<32xf32>) -> tensor<4x8xf32>
  %2 = graph.reduce sum %1 {dims = array<i64: 1>} : (tensor<4x8xf32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}

// CHECK-LABEL: func.func @read(
// CHECK-COUNT-2: graph.reduce max
func.func @read(%x: tensor<32x64xf32>) -> (tensor<4xf32>, tensor<32xf32>) {
  %0 = graph.reduce max %x {dims = array<i64: 1>} : (tensor<32x64xf32>) -> tensor<32xf32>
  %1 = graph.reshape %0 : (tensor<32xf32>) -> tensor<4x8xf32>
  %2 = graph.reduce max %1 {dims = array<i64: 1>} : (tensor<4x8xf32>) -> tensor<4xf32>
  return %2, %0 : tensor<4xf32>, tensor<32xf32>
}

// CHECK-LABEL: func.func @other(
// CHECK: graph.reduce max
// CHECK: graph.reduce min
func.func @other(%x: tensor<32x64xf32>) -> tensor<4xf32> {
  %0 = graph.reduce max %x {dims = array<i64: 1>} : (tensor<32x64xf32>) -> tensor<32xf32>
  %1 = graph.reshape %0 : (tensor<32xf32>) -> tensor<4x8xf32>
  %2 = graph.reduce min %1 {dims = array<i64: 1>} : (tensor<4x8xf32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}

// CHECK-LABEL: func.func @first(
// CHECK-COUNT-2: graph.reduce max
func.func @first(%x: tensor<64x32xf32>) -> tensor<4xf32> {
  %0 = graph.reduce max %x {dims = array<i64: 0>} : (tensor<64x32xf32>) -> tensor<32xf32>
  %1 = graph.reshape %0 : (tensor<32xf32>) -> tensor<4x8xf32>
  %2 = graph.reduce max %1 {dims = array<i64: 1>} : (tensor<4x8xf32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}

// The scale of a block is read where it is, by each element of its parts.

// CHECK-LABEL: func.func @scale(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<6x32x64xf32>, %[[S:[a-z0-9]+]]: tensor<6x4xf32>
// CHECK-DAG: %[[P:.*]] = graph.reshape %[[X]] : (tensor<6x32x64xf32>) -> tensor<6x4x8x64xf32>
// CHECK-DAG: %[[T:.*]] = graph.reshape %[[S]] : (tensor<6x4xf32>) -> tensor<6x4x1x1xf32>
// CHECK: %[[Z:.*]] = graph.mul %[[P]], %[[T]]
// CHECK-NEXT: %[[Y:.*]] = graph.reshape %[[Z]] : (tensor<6x4x8x64xf32>) -> tensor<6x32x64xf32>
// CHECK-NEXT: return %[[Y]]
func.func @scale(%x: tensor<6x32x64xf32>, %s: tensor<6x4xf32>) -> tensor<6x32x64xf32> {
  %0 = graph.reshape %s : (tensor<6x4xf32>) -> tensor<6x4x1xf32>
  %1 = graph.broadcast %0 : (tensor<6x4x1xf32>) -> tensor<6x4x8xf32>
  %2 = graph.reshape %1 : (tensor<6x4x8xf32>) -> tensor<6x32x1xf32>
  %3 = graph.mul %x, %2 : (tensor<6x32x64xf32>, tensor<6x32x1xf32>) -> tensor<6x32x64xf32>
  return %3 : tensor<6x32x64xf32>
}

// What strides describe is left as it is.

// CHECK-LABEL: func.func @repeated(
// CHECK: graph.broadcast
// CHECK: graph.mul %{{.*}} : (tensor<4x64xf32>, tensor<4x64xf32>)
func.func @repeated(%x: tensor<4x64xf32>, %s: tensor<4x1x1xf32>) -> tensor<4x64xf32> {
  %0 = graph.broadcast %s : (tensor<4x1x1xf32>) -> tensor<4x8x8xf32>
  %1 = graph.reshape %0 : (tensor<4x8x8xf32>) -> tensor<4x64xf32>
  %2 = graph.mul %x, %1 : (tensor<4x64xf32>, tensor<4x64xf32>) -> tensor<4x64xf32>
  return %2 : tensor<4x64xf32>
}

// And so is what gives the result a dimension that no other operand has.

// CHECK-LABEL: func.func @grown(
// CHECK: graph.broadcast
// CHECK: graph.mul %{{.*}} : (tensor<4x6x1xf32>, tensor<4x6x2xf32>) -> tensor<4x6x2xf32>
func.func @grown(%x: tensor<4x6x1xf32>, %s: tensor<24x1xf32>) -> tensor<4x6x2xf32> {
  %0 = graph.broadcast %s : (tensor<24x1xf32>) -> tensor<24x2xf32>
  %1 = graph.reshape %0 : (tensor<24x2xf32>) -> tensor<4x6x2xf32>
  %2 = graph.mul %x, %1 : (tensor<4x6x1xf32>, tensor<4x6x2xf32>) -> tensor<4x6x2xf32>
  return %2 : tensor<4x6x2xf32>
}

// CHECK-LABEL: func.func @grown_in_parts(
// CHECK: graph.broadcast
// CHECK: graph.mul %{{.*}} : (tensor<4x6x1xf32>, tensor<4x6x2xf32>) -> tensor<4x6x2xf32>
func.func @grown_in_parts(%x: tensor<4x6x1xf32>, %s: tensor<4x2x1x1xf32>) -> tensor<4x6x2xf32> {
  %0 = graph.broadcast %s : (tensor<4x2x1x1xf32>) -> tensor<4x2x3x2xf32>
  %1 = graph.reshape %0 : (tensor<4x2x3x2xf32>) -> tensor<4x6x2xf32>
  %2 = graph.mul %x, %1 : (tensor<4x6x1xf32>, tensor<4x6x2xf32>) -> tensor<4x6x2xf32>
  return %2 : tensor<4x6x2xf32>
}
