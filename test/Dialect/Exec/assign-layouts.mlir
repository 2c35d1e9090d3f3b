// RUN: cleave-opt %s --pass-pipeline='builtin.module(func.func(exec-decompose,exec-fold-views,exec-select-kernels),exec-assign-layouts)' | FileCheck %s

// Attention writes heads side by side, which the next product reads as rows;
// its gradients are written into one tensor. Nothing is copied.
// CHECK-LABEL: func.func @attention
// CHECK-NOT: exec.copy
// CHECK: exec.attention {{.*}} -> (tensor<2x4x16x8xf32, #exec.layout<[512, 8, 32, 1]>>, tensor<2x4x16xf32>)
// CHECK-NOT: exec.copy
// CHECK: exec.attention_grad {{.*}} -> (tensor<2x4x16x8xf32, #exec.layout<[1536, 8, 96, 1]>>, tensor<2x4x16x8xf32, #exec.layout<[1536, 8, 96, 1], offset = 32>>, tensor<2x4x16x8xf32, #exec.layout<[1536, 8, 96, 1], offset = 64>>)
// CHECK-NOT: exec.copy
// CHECK: exec.join
// CHECK-NOT: exec.copy
// CHECK: return
func.func @attention(%x: tensor<2x16x32xf32>, %w: tensor<96x32xf32>, %wo: tensor<32x32xf32>) -> (tensor<2x16x32xf32>, tensor<96x32xf32>) {
  %qkv = graph.linear %x, %w : (tensor<2x16x32xf32>, tensor<96x32xf32>) -> tensor<2x16x96xf32>
  %q0 = graph.slice %qkv {offsets = array<i64: 0,0,0>, sizes = array<i64: 2,16,32>, strides = array<i64: 1,1,1>} : (tensor<2x16x96xf32>) -> tensor<2x16x32xf32>
  %k0 = graph.slice %qkv {offsets = array<i64: 0,0,32>, sizes = array<i64: 2,16,32>, strides = array<i64: 1,1,1>} : (tensor<2x16x96xf32>) -> tensor<2x16x32xf32>
  %v0 = graph.slice %qkv {offsets = array<i64: 0,0,64>, sizes = array<i64: 2,16,32>, strides = array<i64: 1,1,1>} : (tensor<2x16x96xf32>) -> tensor<2x16x32xf32>
  %q1 = graph.reshape %q0 : (tensor<2x16x32xf32>) -> tensor<2x16x4x8xf32>
  %k1 = graph.reshape %k0 : (tensor<2x16x32xf32>) -> tensor<2x16x4x8xf32>
  %v1 = graph.reshape %v0 : (tensor<2x16x32xf32>) -> tensor<2x16x4x8xf32>
  %q = graph.transpose %q1 {permutation = array<i64: 0,2,1,3>} : (tensor<2x16x4x8xf32>) -> tensor<2x4x16x8xf32>
  %k = graph.transpose %k1 {permutation = array<i64: 0,2,1,3>} : (tensor<2x16x4x8xf32>) -> tensor<2x4x16x8xf32>
  %v = graph.transpose %v1 {permutation = array<i64: 0,2,1,3>} : (tensor<2x16x4x8xf32>) -> tensor<2x4x16x8xf32>
  %o, %lse = graph.attention %q, %k, %v {scale = 0.5 : f64, causal} : (tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>) -> (tensor<2x4x16x8xf32>, tensor<2x4x16xf32>)
  %o1 = graph.transpose %o {permutation = array<i64: 0,2,1,3>} : (tensor<2x4x16x8xf32>) -> tensor<2x16x4x8xf32>
  %o2 = graph.reshape %o1 : (tensor<2x16x4x8xf32>) -> tensor<2x16x32xf32>
  %y = graph.linear %o2, %wo : (tensor<2x16x32xf32>, tensor<32x32xf32>) -> tensor<2x16x32xf32>
  %do1 = graph.reshape %y : (tensor<2x16x32xf32>) -> tensor<2x16x4x8xf32>
  %do = graph.transpose %do1 {permutation = array<i64: 0,2,1,3>} : (tensor<2x16x4x8xf32>) -> tensor<2x4x16x8xf32>
  %dq, %dk, %dv = graph.attention_grad %do, %q, %k, %v, %o, %lse {scale = 0.5 : f64, causal} : (tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>, tensor<2x4x16xf32>) -> (tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>)
  %dq1 = graph.transpose %dq {permutation = array<i64: 0,2,1,3>} : (tensor<2x4x16x8xf32>) -> tensor<2x16x4x8xf32>
  %dk1 = graph.transpose %dk {permutation = array<i64: 0,2,1,3>} : (tensor<2x4x16x8xf32>) -> tensor<2x16x4x8xf32>
  %dv1 = graph.transpose %dv {permutation = array<i64: 0,2,1,3>} : (tensor<2x4x16x8xf32>) -> tensor<2x16x4x8xf32>
  %dq2 = graph.reshape %dq1 : (tensor<2x16x4x8xf32>) -> tensor<2x16x32xf32>
  %dk2 = graph.reshape %dk1 : (tensor<2x16x4x8xf32>) -> tensor<2x16x32xf32>
  %dv2 = graph.reshape %dv1 : (tensor<2x16x4x8xf32>) -> tensor<2x16x32xf32>
  %p0 = graph.pad %dq2 {value = 0.0 : f64, low = array<i64: 0,0,0>, high = array<i64: 0,0,64>, interior = array<i64: 0,0,0>} : (tensor<2x16x32xf32>) -> tensor<2x16x96xf32>
  %p1 = graph.pad %dk2 {value = 0.0 : f64, low = array<i64: 0,0,32>, high = array<i64: 0,0,32>, interior = array<i64: 0,0,0>} : (tensor<2x16x32xf32>) -> tensor<2x16x96xf32>
  %p2 = graph.pad %dv2 {value = 0.0 : f64, low = array<i64: 0,0,64>, high = array<i64: 0,0,0>, interior = array<i64: 0,0,0>} : (tensor<2x16x32xf32>) -> tensor<2x16x96xf32>
  %s0 = graph.add %p2, %p1 : (tensor<2x16x96xf32>, tensor<2x16x96xf32>) -> tensor<2x16x96xf32>
  %s1 = graph.add %s0, %p0 : (tensor<2x16x96xf32>, tensor<2x16x96xf32>) -> tensor<2x16x96xf32>
  %dw = graph.contract "abo,abi->oi" %s1, %x : (tensor<2x16x96xf32>, tensor<2x16x32xf32>) -> tensor<96x32xf32>
  %gw = graph.gradient %dw of "w" : (tensor<96x32xf32>) -> tensor<96x32xf32>
  %dx = graph.contract "bso,oi->bsi" %s1, %w : (tensor<2x16x96xf32>, tensor<96x32xf32>) -> tensor<2x16x32xf32>
  return %dx, %gw : tensor<2x16x32xf32>, tensor<96x32xf32>
}
