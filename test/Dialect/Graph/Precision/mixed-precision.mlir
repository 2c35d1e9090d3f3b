// RUN: cleave-opt %s --graph-differentiate --graph-apply-optimizer="optimizer=sgd" --graph-mixed-precision --cse | FileCheck %s
// RUN: cleave-opt %s --graph-differentiate --graph-apply-optimizer="optimizer=sgd" --graph-mixed-precision="round-sums=true" --cse | FileCheck %s --check-prefix=ROUND
// RUN: cleave-opt %s --graph-differentiate --graph-apply-optimizer="optimizer=sgd" --graph-mixed-precision="round-gradients=true" --cse | FileCheck %s --check-prefix=GRADIENT
// RUN: not cleave-opt %s --graph-mixed-precision="precision=fp4" 2>&1 | FileCheck %s --check-prefix=UNKNOWN

// UNKNOWN: error: unknown precision 'fp4'; there are bf16 and fp16

// A weight is copied once. Contractions read 16 bits and sum in f32; what other
// ops read, and what backward reads, is the rounded sum; the gradient of a
// parameter is a sum in f32.

// CHECK-LABEL: func.func @train(
// CHECK-SAME: %[[W:.*]]: tensor<16x4xf32> {{.*}}, %[[B:.*]]: tensor<16xf32> {{.*}}, %[[X:.*]]: tensor<8x4xf32>
// CHECK-DAG: %[[W16:.*]] = graph.cast %[[W]] : (tensor<16x4xf32>) -> tensor<16x4xbf16>
// CHECK-DAG: %[[X16:.*]] = graph.cast %[[X]] : (tensor<8x4xf32>) -> tensor<8x4xbf16>
// CHECK: %[[Y:.*]] = graph.linear %[[X16]], %[[W16]] bias %[[B]] {result_element = f32}
// CHECK: %[[Y16:.*]] = graph.cast %[[Y]] : (tensor<8x16xf32>) -> tensor<8x16xbf16>
// CHECK: graph.relu %[[Y16]] : (tensor<8x16xbf16>) -> tensor<8x16xbf16>
// CHECK: %[[WIDE:.*]] = graph.cast %{{.*}} : (tensor<8x16xbf16>) -> tensor<8x16xf32>
// CHECK: graph.reduce sum %[[WIDE]]
// CHECK-NOT: graph.cast %[[W]]
// CHECK: graph.seed %{{.*}} : (tensor<f32>)
// CHECK-NOT: %[[Y]]
// CHECK: graph.contract {{.*}} {result_element = f32} : (tensor<8x16xbf16>, tensor<8x4xbf16>) -> tensor<16x4xf32>
// CHECK: graph.gradient %{{.*}} of "w" : (tensor<16x4xf32>)
// CHECK: graph.sgd %[[W]], {{.*}} (tensor<16x4xf32>, tensor<16x4xf32>

// With round-sums the result of a contraction is 16-bit before shards are
// summed; the gradient of a parameter is not.

// ROUND-LABEL: func.func @train(
// ROUND: graph.linear {{.*}} : (tensor<8x4xbf16>, tensor<16x4xbf16>, tensor<16xbf16>) -> tensor<8x16xbf16>
// ROUND: graph.contract {{.*}} {result_element = f32} : (tensor<8x16xbf16>, tensor<8x4xbf16>) -> tensor<16x4xf32>

// With round-gradients the gradient of a weight is 16-bit up to its update, and
// that of a bias, no result of a contraction, f32.

// GRADIENT-LABEL: func.func @train(
// GRADIENT: graph.linear {{.*}} {result_element = f32}
// GRADIENT: %[[DW:.*]] = graph.contract {{.*}} : (tensor<8x16xbf16>, tensor<8x4xbf16>) -> tensor<16x4xbf16>
// GRADIENT: %[[G:.*]] = graph.gradient %[[DW]] of "w" : (tensor<16x4xbf16>)
// GRADIENT: %[[WIDE:.*]] = graph.cast %[[G]]
// GRADIENT: graph.sgd %{{.*}}, %[[WIDE]]
// GRADIENT: graph.gradient %{{.*}} of "b" : (tensor<16xf32>)
func.func @loss(%w: tensor<16x4xf32> {graph.name = "w", graph.role = "parameter"},
                %b: tensor<16xf32> {graph.name = "b", graph.role = "parameter"},
                %x: tensor<8x4xf32> {graph.name = "x", graph.role = "input"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %y = graph.linear %x, %w bias %b : (tensor<8x4xf32>, tensor<16x4xf32>, tensor<16xf32>) -> tensor<8x16xf32>
  %z = graph.relu %y : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %l = graph.reduce sum %z {dims = array<i64: 0, 1>} : (tensor<8x16xf32>) -> tensor<f32>
  return %l : tensor<f32>
}
