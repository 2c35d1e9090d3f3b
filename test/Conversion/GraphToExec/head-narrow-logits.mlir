// RUN: cleave-opt %s --exec-select-kernels="products16=true" --split-input-file | FileCheck %s

// Logits of 16 bits are those that the product rounds, of twice as many rows at
// a time, and what reads them takes them as they are.
// CHECK-LABEL: func.func @head
func.func @head(%x: tensor<32x8xbf16>, %w: tensor<48x8xbf16>, %t: tensor<32xi64>, %g: tensor<32xf32>)
    -> (tensor<32xf32>, tensor<32x8xbf16>, tensor<48x8xf32>) {
  // CHECK: %[[L:.*]] = exec.contract {{.*}} -> tensor<32x48xbf16>
  // CHECK-NOT: graph.cast
  // CHECK: graph.cross_entropy %[[L]],
  // CHECK: %[[S:.*]] = graph.cross_entropy_grad {{.*}} -> tensor<32x48xbf16>
  // CHECK: exec.contract %[[S]], {{.*}} -> tensor<32x8xbf16>
  // CHECK: exec.contract {{.*}} -> tensor<48x8xf32>
  // CHECK-NOT: exec.contract
  %l, %dx, %dw = graph.head_loss %x, %w targets %t gradient %g {chunk_rows = 16 : i64, narrow_logits}
      : (tensor<32x8xbf16>, tensor<48x8xbf16>, tensor<32xi64>, tensor<32xf32>)
      -> (tensor<32xf32>, tensor<32x8xbf16>, tensor<48x8xf32>)
  return %l, %dx, %dw : tensor<32xf32>, tensor<32x8xbf16>, tensor<48x8xf32>
}

// -----

// The bias is added before, and its gradient is the sum of what is not rounded.
// CHECK-LABEL: func.func @bias
func.func @bias(%x: tensor<32x8xbf16>, %w: tensor<48x8xbf16>, %b: tensor<48xf32>, %t: tensor<32xi64>, %g: tensor<32xf32>)
    -> (tensor<32xf32>, tensor<32x8xbf16>, tensor<48x8xf32>, tensor<48xf32>) {
  // CHECK: %[[L:.*]] = graph.cast %{{.*}} : (tensor<32x48xf32>) -> tensor<32x48xbf16>
  // CHECK: %[[R:.*]] = graph.cast %[[L]] : (tensor<32x48xbf16>) -> tensor<32x48xf32>
  // CHECK: graph.cross_entropy %[[R]],
  // CHECK: %[[S:.*]] = graph.cross_entropy_grad {{.*}} -> tensor<32x48xf32>
  // CHECK: graph.reduce sum %[[S]]
  %l, %dx, %dw, %db = graph.head_loss %x, %w bias %b targets %t gradient %g {narrow_logits}
      : (tensor<32x8xbf16>, tensor<48x8xbf16>, tensor<48xf32>, tensor<32xi64>, tensor<32xf32>)
      -> (tensor<32xf32>, tensor<32x8xbf16>, tensor<48x8xf32>, tensor<48xf32>)
  return %l, %dx, %dw, %db : tensor<32xf32>, tensor<32x8xbf16>, tensor<48x8xf32>, tensor<48xf32>
}
