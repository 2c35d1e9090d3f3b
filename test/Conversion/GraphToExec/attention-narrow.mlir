// RUN: cleave-opt %s --pass-pipeline='builtin.module(func.func(exec-decompose,exec-fold-views,exec-select-kernels))' | FileCheck %s --check-prefix=WIDE
// RUN: cleave-opt %s --pass-pipeline='builtin.module(func.func(exec-decompose{wide-attention=false},exec-fold-views,exec-select-kernels))' | FileCheck %s --check-prefix=NARROW

// Attention of 16-bit heads is computed on copies in f32, or in 16 bits where
// the target has kernels for it.
// WIDE-LABEL: func.func @forward
// WIDE: graph.cast %{{.*}} : (tensor<1x2x8x4xbf16>) -> tensor<1x2x8x4xf32>
// WIDE: exec.attention {{.*}} -> (tensor<1x2x8x4xf32>, tensor<1x2x8xf32>)
// WIDE: graph.cast %{{.*}} : (tensor<1x2x8x4xf32>) -> tensor<1x2x8x4xbf16>
// NARROW-LABEL: func.func @forward
// NARROW-NOT: graph.cast
// NARROW: exec.attention {{.*}} : (tensor<1x2x8x4xbf16>, tensor<1x2x8x4xbf16>, tensor<1x2x8x4xbf16>) -> (tensor<1x2x8x4xbf16>, tensor<1x2x8xf32>)
func.func @forward(%q: tensor<1x2x8x4xbf16>, %k: tensor<1x2x8x4xbf16>, %v: tensor<1x2x8x4xbf16>) -> (tensor<1x2x8x4xbf16>, tensor<1x2x8xf32>) {
  %o, %lse = graph.attention %q, %k, %v {scale = 0.5 : f64, causal} : (tensor<1x2x8x4xbf16>, tensor<1x2x8x4xbf16>, tensor<1x2x8x4xbf16>) -> (tensor<1x2x8x4xbf16>, tensor<1x2x8xf32>)
  return %o, %lse : tensor<1x2x8x4xbf16>, tensor<1x2x8xf32>
}

// Results may be the sums, and the bias is f32.
// WIDE-LABEL: func.func @backward
// WIDE: exec.attention_grad {{.*}} -> (tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<8x8xf32>)
// WIDE-NOT: graph.cast
// WIDE: return
// NARROW-LABEL: func.func @backward
// NARROW-NOT: graph.cast
// NARROW: exec.attention_grad {{.*}} -> (tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<8x8xf32>)
func.func @backward(%do: tensor<1x2x8x4xf16>, %q: tensor<1x2x8x4xf16>, %o: tensor<1x2x8x4xf16>, %lse: tensor<1x2x8x2xf32>, %bias: tensor<8x8xf32>) -> (tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<8x8xf32>) {
  %dq, %dk, %dv = graph.attention_grad %do, %q, %q, %q, %o, %lse bias %bias {scale = 0.5 : f64, result_element = f32} : (tensor<1x2x8x4xf16>, tensor<1x2x8x4xf16>, tensor<1x2x8x4xf16>, tensor<1x2x8x4xf16>, tensor<1x2x8x4xf16>, tensor<1x2x8x2xf32>, tensor<8x8xf32>) -> (tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>)
  %db = graph.attention_bias_grad %do, %q, %q, %q, %o, %lse bias %bias {scale = 0.5 : f64} : (tensor<1x2x8x4xf16>, tensor<1x2x8x4xf16>, tensor<1x2x8x4xf16>, tensor<1x2x8x4xf16>, tensor<1x2x8x4xf16>, tensor<1x2x8x2xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %dq, %dk, %dv, %db : tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<8x8xf32>
}

// What has no command in 16 bits is widened: factors of two types, or a bias of
// 16 bits.
// NARROW-LABEL: func.func @mixed
// NARROW: exec.attention_grad {{.*}} -> (tensor<1x2x8x4xf32>
func.func @mixed(%do: tensor<1x2x8x4xf32>, %q: tensor<1x2x8x4xbf16>, %o: tensor<1x2x8x4xf32>, %lse: tensor<1x2x8xf32>) -> (tensor<1x2x8x4xbf16>, tensor<1x2x8x4xbf16>, tensor<1x2x8x4xbf16>) {
  %dq, %dk, %dv = graph.attention_grad %do, %q, %q, %q, %o, %lse {scale = 0.5 : f64} : (tensor<1x2x8x4xf32>, tensor<1x2x8x4xbf16>, tensor<1x2x8x4xbf16>, tensor<1x2x8x4xbf16>, tensor<1x2x8x4xf32>, tensor<1x2x8xf32>) -> (tensor<1x2x8x4xbf16>, tensor<1x2x8x4xbf16>, tensor<1x2x8x4xbf16>)
  return %dq, %dk, %dv : tensor<1x2x8x4xbf16>, tensor<1x2x8x4xbf16>, tensor<1x2x8x4xbf16>
}
// NARROW-LABEL: func.func @bias
// NARROW: exec.attention {{.*}} -> (tensor<1x2x8x4xf32>
func.func @bias(%q: tensor<1x2x8x4xbf16>, %bias: tensor<8x8xbf16>) -> (tensor<1x2x8x4xbf16>, tensor<1x2x8x2xf32>) {
  %o, %lse = graph.attention %q, %q, %q bias %bias {scale = 0.5 : f64} : (tensor<1x2x8x4xbf16>, tensor<1x2x8x4xbf16>, tensor<1x2x8x4xbf16>, tensor<8x8xbf16>) -> (tensor<1x2x8x4xbf16>, tensor<1x2x8x2xf32>)
  return %o, %lse : tensor<1x2x8x4xbf16>, tensor<1x2x8x2xf32>
}
