// RUN: cleave-opt %s --graph-differentiate --graph-apply-optimizer="optimizer=sgd" --graph-mixed-precision="round-sums=true" --cse | FileCheck %s
// RUN: cleave-opt %s --graph-differentiate --graph-apply-optimizer="optimizer=sgd" --graph-mixed-precision --cse | FileCheck %s --check-prefix=WIDE

// Logits are sums of a product too: where those are rounded, so are they, in
// forward and where backward computes them again.

// CHECK-LABEL: func.func @train(
// CHECK: graph.head_loss {{.*}} narrow_logits} : (tensor<8x4xbf16>, tensor<16x4xbf16>, tensor<8xi64>)
// CHECK: graph.head_loss {{.*}} gradient {{.*}} narrow_logits}
// WIDE-LABEL: func.func @train(
// WIDE-NOT: narrow_logits
func.func @loss(
    %w: tensor<16x4xf32> {graph.name = "w", graph.role = "parameter"},
    %x: tensor<8x4xf32> {graph.name = "x", graph.role = "input"},
    %t: tensor<8xi64> {graph.name = "t", graph.role = "input"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %0 = graph.head_loss %x, %w targets %t {chunk_rows = 8 : i64} : (tensor<8x4xf32>, tensor<16x4xf32>, tensor<8xi64>) -> tensor<8xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 0>} : (tensor<8xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}
