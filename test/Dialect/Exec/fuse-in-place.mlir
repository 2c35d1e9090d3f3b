// RUN: cleave-opt %s --exec-fuse | FileCheck %s

// Kernels write parts of a joined value in their places, by one kernel.
// CHECK-LABEL: func.func @join(
// CHECK-SAME: %[[A:.*]]: tensor<4x8xf32>, %[[B:.*]]: tensor<4x8xf32>
// CHECK-DAG: %[[X:.*]] = exec.launch @[[CAST:.*]](%[[A]]) : (tensor<4x8xf32>) -> tensor<4x8xbf16>
// CHECK-DAG: %[[Y:.*]] = exec.launch @[[CAST]](%[[B]]) : (tensor<4x8xf32>) -> tensor<4x8xbf16, #exec.layout<[8, 1], offset = 32>>
// CHECK-NOT: exec.copy
// CHECK: exec.join %[[X]], %[[Y]]
func.func @join(%a: tensor<4x8xf32>, %b: tensor<4x8xf32>) -> tensor<8x8xbf16> {
  %0 = graph.cast %a : (tensor<4x8xf32>) -> tensor<4x8xbf16>
  %1 = graph.cast %b : (tensor<4x8xf32>) -> tensor<4x8xbf16>
  %2 = exec.copy %0 : tensor<4x8xbf16> -> tensor<4x8xbf16>
  %3 = exec.copy %1 : tensor<4x8xbf16> -> tensor<4x8xbf16, #exec.layout<[8, 1], offset = 32>>
  %4 = exec.join %2, %3 : (tensor<4x8xbf16>, tensor<4x8xbf16, #exec.layout<[8, 1], offset = 32>>) -> tensor<8x8xbf16>
  return %4 : tensor<8x8xbf16>
}

// The second half of each row.
// CHECK-LABEL: func.func @columns(
// CHECK: %[[X:.*]] = exec.launch @neg(%{{.*}}) : {{.*}} -> tensor<4x8xf32, #exec.layout<[16, 1]>>
// CHECK: %[[Y:.*]] = exec.launch @exp(%{{.*}}) : {{.*}} -> tensor<4x8xf32, #exec.layout<[16, 1], offset = 8>>
// CHECK-NEXT: exec.join %[[X]], %[[Y]]
func.func @columns(%a: tensor<4x8xf32>) -> tensor<4x16xf32> {
  %0 = graph.neg %a : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = graph.exp %a : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = exec.copy %0 : tensor<4x8xf32> -> tensor<4x8xf32, #exec.layout<[16, 1]>>
  %3 = exec.copy %1 : tensor<4x8xf32> -> tensor<4x8xf32, #exec.layout<[16, 1], offset = 8>>
  %4 = exec.join %2, %3 : (tensor<4x8xf32, #exec.layout<[16, 1]>>, tensor<4x8xf32, #exec.layout<[16, 1], offset = 8>>) -> tensor<4x16xf32>
  return %4 : tensor<4x16xf32>
}

// Not what is only copied into another order, and not a sum over rows, which a
// kernel makes in another way.
// CHECK-LABEL: func.func @stay(
// CHECK-COUNT-2: exec.copy
func.func @stay(%a: tensor<4x8xf32>, %b: tensor<2x4x8xf32>, %w: tensor<4x4xf32>)
    -> (tensor<8x4xf32>, tensor<4x8xf32>) {
  %0 = graph.neg %a : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = exec.view %0 : tensor<4x8xf32> -> tensor<8x4xf32, #exec.layout<[1, 8]>>
  %2 = exec.copy %1 : tensor<8x4xf32, #exec.layout<[1, 8]>> -> tensor<8x4xf32>
  %3 = exec.contract %2, %w : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>

  %10 = graph.reduce sum %b {dims = array<i64: 0, 1>} : (tensor<2x4x8xf32>) -> tensor<8xf32>
  %11 = exec.view %10 : tensor<8xf32> -> tensor<1x8xf32>
  %12 = exec.copy %11 : tensor<1x8xf32> -> tensor<1x8xf32>
  %13 = graph.broadcast %12 : (tensor<1x8xf32>) -> tensor<4x8xf32>
  return %3, %13 : tensor<8x4xf32>, tensor<4x8xf32>
}
