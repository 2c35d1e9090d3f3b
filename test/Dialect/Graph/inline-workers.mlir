// RUN: cleave-opt %s --graph-inline-workers | FileCheck %s

// One worker: the op itself.
// CHECK-LABEL: func.func @one(
// CHECK: %[[X:.*]] = graph.reshape %arg0 : (tensor<2x1x3x5xf32>) -> tensor<6x5xf32>
// CHECK: %[[S:.*]] = graph.reduce sum %[[X]] {dims = array<i64: 0>}
// CHECK: %[[R:.*]] = graph.reshape %[[S]] : (tensor<5xf32>) -> tensor<1x5xf32>
// CHECK: return %[[R]]
func.func @one(%x: tensor<2x1x3x5xf32>) -> tensor<1x5xf32> {
  %s = graph.per_worker "graph.reduce" of %x at [1] to [0]
      with {dims = array<i64: 0>, kind = 0 : i32} : (tensor<2x1x3x5xf32>) -> tensor<1x5xf32>
  return %s : tensor<1x5xf32>
}

// Several workers, of which each reads its slice, and all read the scale.
// CHECK-LABEL: func.func @two(
// CHECK: graph.slice %arg0 {offsets = array<i64: 0, 0>, sizes = array<i64: 1, 5>
// CHECK: graph.mul %{{.*}}, %arg1 : (tensor<5xf32>, tensor<f32>)
// CHECK: graph.slice %arg0 {offsets = array<i64: 1, 0>, sizes = array<i64: 1, 5>
// CHECK: graph.mul %{{.*}}, %arg1
// CHECK: graph.concat %{{.*}}, %{{.*}} {dim = 0 : i64} : (tensor<1x5xf32>, tensor<1x5xf32>) -> tensor<2x5xf32>
func.func @two(%x: tensor<2x5xf32>, %scale: tensor<f32>) -> tensor<2x5xf32> {
  %y = graph.per_worker "graph.mul" of %x, %scale at [0, -1] to [0] with {} : (tensor<2x5xf32>, tensor<f32>) -> tensor<2x5xf32>
  return %y : tensor<2x5xf32>
}

// A result that has samples has its workers where the operand has them.
// CHECK-LABEL: func.func @samples(
// CHECK: %[[Y:.*]] = graph.neg %{{.*}} : (tensor<6x5xf32>)
// CHECK: graph.reshape %[[Y]] : (tensor<6x5xf32>) -> tensor<2x1x3x5xf32>
func.func @samples(%x: tensor<2x1x3x5xf32>) -> tensor<2x1x3x5xf32> {
  %y = graph.per_worker "graph.neg" of %x at [1] to [1] with {} : (tensor<2x1x3x5xf32>) -> tensor<2x1x3x5xf32>
  return %y : tensor<2x1x3x5xf32>
}
