// RUN: cleave-opt %s --exec-fold-views --split-input-file | FileCheck %s

// Slices, reshapes and transposes of one value are views of it, composed.
// CHECK-LABEL: func.func @heads
// CHECK-SAME: (%[[X:.*]]: tensor<2x16x96xf32>
func.func @heads(%x: tensor<2x16x96xf32>) -> tensor<2x4x16xf32> {
  %0 = graph.slice %x {offsets = array<i64: 0, 0, 32>, sizes = array<i64: 2, 16, 32>, strides = array<i64: 1, 1, 1>}
      : (tensor<2x16x96xf32>) -> tensor<2x16x32xf32>
  %1 = graph.reshape %0 : (tensor<2x16x32xf32>) -> tensor<2x16x4x8xf32>
  %2 = graph.transpose %1 {permutation = array<i64: 0, 2, 1, 3>}
      : (tensor<2x16x4x8xf32>) -> tensor<2x4x16x8xf32>
  // CHECK: %[[V:.*]] = exec.view %[[X]] : tensor<2x16x96xf32> -> tensor<2x4x16x8xf32, #exec.layout<[1536, 8, 96, 1], offset = 32>>
  // CHECK: graph.reduce sum %[[V]]
  %3 = graph.reduce sum %2 {dims = array<i64: 3>} : (tensor<2x4x16x8xf32>) -> tensor<2x4x16xf32>
  return %3 : tensor<2x4x16xf32>
}

// -----

// Strides cannot express the reshape of a transpose: it is copied once.
// CHECK-LABEL: func.func @merge
// CHECK-SAME: (%[[X:.*]]: tensor<4x6xf32>
func.func @merge(%x: tensor<4x6xf32>) -> tensor<24xf32> {
  %0 = graph.transpose %x {permutation = array<i64: 1, 0>} : (tensor<4x6xf32>) -> tensor<6x4xf32>
  %1 = graph.reshape %0 : (tensor<6x4xf32>) -> tensor<24xf32>
  // CHECK: %[[T:.*]] = exec.view %[[X]] : tensor<4x6xf32> -> tensor<6x4xf32, #exec.layout<[1, 6]>>
  // CHECK: %[[C:.*]] = exec.copy %[[T]] : {{.*}} -> tensor<6x4xf32>
  // CHECK: %[[R:.*]] = exec.view %[[C]] : tensor<6x4xf32> -> tensor<24xf32>
  // CHECK: graph.neg %[[R]]
  %2 = graph.neg %1 : (tensor<24xf32>) -> tensor<24xf32>
  return %2 : tensor<24xf32>
}

// -----

// A broadcast repeats by strides of 0; windows overlap.
// CHECK-LABEL: func.func @repeat
func.func @repeat(%b: tensor<8xf32>, %i: tensor<1x1x4x4xf32>) -> (tensor<f32>, tensor<f32>) {
  %0 = graph.broadcast %b : (tensor<8xf32>) -> tensor<3x8xf32>
  // CHECK: exec.view %arg0 : tensor<8xf32> -> tensor<3x8xf32, #exec.layout<[0, 1]>>
  %1 = graph.reduce sum %0 {dims = array<i64: 0, 1>} : (tensor<3x8xf32>) -> tensor<f32>
  %2 = graph.patches %i {kernel = array<i64: 2, 2>, stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>}
      : (tensor<1x1x4x4xf32>) -> tensor<1x3x3x1x2x2xf32>
  // CHECK: exec.view %arg1 : tensor<1x1x4x4xf32> -> tensor<1x3x3x1x2x2xf32, #exec.layout<[{{[0-9]+}}, 4, 1, {{[0-9]+}}, 4, 1]>>
  %3 = graph.reduce sum %2 {dims = array<i64: 0, 1, 2, 3, 4, 5>} : (tensor<1x3x3x1x2x2xf32>) -> tensor<f32>
  return %1, %3 : tensor<f32>, tensor<f32>
}

// -----

// A concatenation is a buffer that its operands are written into.
// CHECK-LABEL: func.func @concat
func.func @concat(%a: tensor<4x2xf32>, %b: tensor<4x6xf32>) -> tensor<4x8xf32> {
  // CHECK: %[[A:.*]] = exec.copy %arg0 : tensor<4x2xf32> -> tensor<4x2xf32, #exec.layout<[8, 1]>>
  // CHECK: %[[B:.*]] = exec.copy %arg1 : tensor<4x6xf32> -> tensor<4x6xf32, #exec.layout<[8, 1], offset = 2>>
  // CHECK: exec.join %[[A]], %[[B]]
  %0 = graph.concat %a, %b {dim = 1 : i64} : (tensor<4x2xf32>, tensor<4x6xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// -----

// A part's result is never an argument's memory.
// CHECK-LABEL: func.func @through
func.func @through(%a: tensor<4xf32>) -> tensor<2x2xf32> {
  // CHECK: %[[V:.*]] = exec.view %arg0
  // CHECK: %[[C:.*]] = exec.copy %[[V]] : tensor<2x2xf32> -> tensor<2x2xf32>
  // CHECK: return %[[C]]
  %0 = graph.reshape %a : (tensor<4xf32>) -> tensor<2x2xf32>
  return %0 : tensor<2x2xf32>
}

// -----

// Who invokes a part has room for what it declares: the beginning of something
// larger is copied, though it looks the same.
// CHECK-LABEL: func.func @beginning
func.func @beginning(%x: tensor<33xf32>) -> tensor<32xf32> {
  // CHECK: %[[N:.*]] = graph.neg
  // CHECK: %[[V:.*]] = exec.view %[[N]] : tensor<33xf32> -> tensor<32xf32>
  // CHECK: %[[C:.*]] = exec.copy %[[V]] : tensor<32xf32> -> tensor<32xf32>
  // CHECK: return %[[C]]
  %0 = graph.neg %x : (tensor<33xf32>) -> tensor<33xf32>
  %1 = graph.slice %0 {offsets = array<i64: 0>, sizes = array<i64: 32>, strides = array<i64: 1>}
      : (tensor<33xf32>) -> tensor<32xf32>
  return %1 : tensor<32xf32>
}
