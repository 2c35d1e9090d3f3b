// Gradients of norms that all heads share are summed over the ranks of the heads, too.

// RUN: cleave-compile %s --mesh=dp=2,tp=2 --plan=megatron --check-cost --explain=cost --plan-only | FileCheck %s
// CHECK: all_reduce over "dp", "tp": form 12.0 KiB, plan 12.0 KiB, ratio 1.000 (gradients)

// With zero1 the shards of these.
// RUN: cleave-compile %s --mesh=dp=2,tp=2 --plan=megatron,zero1 --check-cost --explain=cost --plan-only | FileCheck %s --check-prefix=ZERO
// ZERO: all_reduce over "tp": form 132.0 KiB, plan 132.1 KiB, ratio 1.000 (shards of gradients; 
func.func @loss(
    %table: tensor<64x2048xf32> {graph.name = "table", graph.role = "parameter"},
    %q: tensor<2048x2048xf32> {graph.name = "q", graph.role = "parameter"},
    %k: tensor<2048x2048xf32> {graph.name = "k", graph.role = "parameter"},
    %v: tensor<2048x2048xf32> {graph.name = "v", graph.role = "parameter"},
    %o: tensor<2048x2048xf32> {graph.name = "o", graph.role = "parameter"},
    %qn: tensor<1024xf32> {graph.name = "qn", graph.role = "parameter"},
    %kn: tensor<1024xf32> {graph.name = "kn", graph.role = "parameter"},
    %head: tensor<64x2048xf32> {graph.name = "head", graph.role = "parameter"},
    %ids: tensor<2x4xi64> {graph.name = "ids", graph.role = "input", graph.batch_dim = 0 : i64},
    %labels: tensor<2x4xi64> {graph.name = "labels", graph.role = "input", graph.batch_dim = 0 : i64}) -> (tensor<f32> {graph.name = "loss"}) {
  %x = graph.gather %table, %ids {dim = 0 : i64} : (tensor<64x2048xf32>, tensor<2x4xi64>) -> tensor<2x4x2048xf32>
  %q0 = graph.linear %x, %q : (tensor<2x4x2048xf32>, tensor<2048x2048xf32>) -> tensor<2x4x2048xf32>
  %k0 = graph.linear %x, %k : (tensor<2x4x2048xf32>, tensor<2048x2048xf32>) -> tensor<2x4x2048xf32>
  %v0 = graph.linear %x, %v : (tensor<2x4x2048xf32>, tensor<2048x2048xf32>) -> tensor<2x4x2048xf32>
  %q1 = graph.reshape %q0 : (tensor<2x4x2048xf32>) -> tensor<2x4x2x1024xf32>
  %k1 = graph.reshape %k0 : (tensor<2x4x2048xf32>) -> tensor<2x4x2x1024xf32>
  %v1 = graph.reshape %v0 : (tensor<2x4x2048xf32>) -> tensor<2x4x2x1024xf32>
  %q2, %qr = graph.rms_norm %q1 weight %qn {epsilon = 1.0e-05 : f64} : (tensor<2x4x2x1024xf32>, tensor<1024xf32>) -> (tensor<2x4x2x1024xf32>, tensor<2x4x2xf32>)
  %k2, %kr = graph.rms_norm %k1 weight %kn {epsilon = 1.0e-05 : f64} : (tensor<2x4x2x1024xf32>, tensor<1024xf32>) -> (tensor<2x4x2x1024xf32>, tensor<2x4x2xf32>)
  %q3 = graph.transpose %q2 {permutation = array<i64: 0, 2, 1, 3>} : (tensor<2x4x2x1024xf32>) -> tensor<2x2x4x1024xf32>
  %k3 = graph.transpose %k2 {permutation = array<i64: 0, 2, 1, 3>} : (tensor<2x4x2x1024xf32>) -> tensor<2x2x4x1024xf32>
  %v3 = graph.transpose %v1 {permutation = array<i64: 0, 2, 1, 3>} : (tensor<2x4x2x1024xf32>) -> tensor<2x2x4x1024xf32>
  %a, %alse = graph.attention %q3, %k3, %v3 {scale = 0.03125 : f64, causal} : (tensor<2x2x4x1024xf32>, tensor<2x2x4x1024xf32>, tensor<2x2x4x1024xf32>) -> (tensor<2x2x4x1024xf32>, tensor<2x2x4xf32>)
  %a1 = graph.transpose %a {permutation = array<i64: 0, 2, 1, 3>} : (tensor<2x2x4x1024xf32>) -> tensor<2x4x2x1024xf32>
  %a2 = graph.reshape %a1 : (tensor<2x4x2x1024xf32>) -> tensor<2x4x2048xf32>
  %d = graph.linear %a2, %o : (tensor<2x4x2048xf32>, tensor<2048x2048xf32>) -> tensor<2x4x2048xf32>
  %y = graph.add %x, %d : (tensor<2x4x2048xf32>, tensor<2x4x2048xf32>) -> tensor<2x4x2048xf32>
  %l = graph.linear %y, %head : (tensor<2x4x2048xf32>, tensor<64x2048xf32>) -> tensor<2x4x64xf32>
  %rows, %lse = graph.cross_entropy %l, %labels : (tensor<2x4x64xf32>, tensor<2x4xi64>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  %sum = graph.reduce sum %rows {dims = array<i64: 0, 1>} : (tensor<2x4xf32>) -> tensor<f32>
  return %sum : tensor<f32>
}
