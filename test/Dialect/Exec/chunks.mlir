// RUN: cleave-opt %s --pass-pipeline='builtin.module(func.func(exec-decompose,exec-fold-views,exec-select-kernels),exec-assign-layouts,exec-match-forms,cse,exec-fuse,cse)' | FileCheck %s

// Chunks of products are written into one value with the order of dimensions in
// which they are made; chunks of what attention gives are read where it writes
// them; and a kernel writes its results in their places. Nothing is copied.
// CHECK-LABEL: func.func @chunks
// CHECK-NOT: exec.copy
// CHECK: exec.contract {{.*}} -> tensor<16x32xf32>
// CHECK: exec.contract {{.*}} -> tensor<16x32xf32, #exec.layout<[32, 1], offset = 512>>
// CHECK: exec.join {{.*}} -> tensor<2x4x16x8xf32, #exec.layout<[512, 8, 32, 1]>>
// CHECK: exec.attention {{.*}} -> (tensor<2x4x16x8xf32, #exec.layout<[512, 8, 32, 1]>>, tensor<2x4x16xf32>)
// CHECK: exec.launch {{.*}} -> tensor<1x16x32xf32>
// CHECK: exec.launch {{.*}} -> tensor<1x16x32xf32, #exec.layout<[512, 32, 1], offset = 512>>
// CHECK-NOT: exec.copy
// CHECK: return
func.func @chunks(%x0: tensor<1x16x32xf32>, %x1: tensor<1x16x32xf32>, %w: tensor<4x8x32xf32>, %v: tensor<4x8x32xf32>)
    -> tensor<2x16x32xf32> {
  %q0 = graph.contract "ABY,abY->AaBb" %x0, %w : (tensor<1x16x32xf32>, tensor<4x8x32xf32>) -> tensor<1x4x16x8xf32>
  %q1 = graph.contract "ABY,abY->AaBb" %x1, %w : (tensor<1x16x32xf32>, tensor<4x8x32xf32>) -> tensor<1x4x16x8xf32>
  %q = graph.concat %q0, %q1 {dim = 0 : i64} : (tensor<1x4x16x8xf32>, tensor<1x4x16x8xf32>) -> tensor<2x4x16x8xf32>
  %o, %lse = graph.attention %q, %q, %q {scale = 0.5 : f64} : (tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>) -> (tensor<2x4x16x8xf32>, tensor<2x4x16xf32>)
  %o0 = graph.slice %o {offsets = array<i64: 0,0,0,0>, sizes = array<i64: 1,4,16,8>, strides = array<i64: 1,1,1,1>} : (tensor<2x4x16x8xf32>) -> tensor<1x4x16x8xf32>
  %o1 = graph.slice %o {offsets = array<i64: 1,0,0,0>, sizes = array<i64: 1,4,16,8>, strides = array<i64: 1,1,1,1>} : (tensor<2x4x16x8xf32>) -> tensor<1x4x16x8xf32>
  %y0 = graph.contract "AaBb,abY->ABY" %o0, %v : (tensor<1x4x16x8xf32>, tensor<4x8x32xf32>) -> tensor<1x16x32xf32>
  %y1 = graph.contract "AaBb,abY->ABY" %o1, %v : (tensor<1x4x16x8xf32>, tensor<4x8x32xf32>) -> tensor<1x16x32xf32>
  %e0 = graph.exp %y0 : (tensor<1x16x32xf32>) -> tensor<1x16x32xf32>
  %e1 = graph.exp %y1 : (tensor<1x16x32xf32>) -> tensor<1x16x32xf32>
  %y = graph.concat %e0, %e1 {dim = 0 : i64} : (tensor<1x16x32xf32>, tensor<1x16x32xf32>) -> tensor<2x16x32xf32>
  return %y : tensor<2x16x32xf32>
}
