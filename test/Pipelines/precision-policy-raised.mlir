// A policy names ops as they are in the phase model: a norm is one op, and the
// ops that compose it are none.
// RUN: cleave-compile %s --precision bf16 --precision-policy 'rms_norm=16bit' --emit=model | FileCheck %s
// RUN: cleave-compile %s --precision bf16 --precision-policy 'blocks.0=16bit' --emit=model | FileCheck %s
// RUN: not cleave-compile %s --precision bf16 --precision-policy 'rsqrt=f32' --emit=model 2>&1 | FileCheck %s --check-prefix=NONE
// NONE: 'rsqrt' matches no op

// CHECK-LABEL: func.func @loss(
// CHECK-NEXT: graph.rms_norm %{{.*}} weight %{{.*}} {epsilon = {{.*}}, graph.precision = "16bit"}
// CHECK-NEXT: graph.reduce sum %{{.*}} {dims = array<i64: 0, 1>} :
func.func @loss(%w: tensor<8xf32> {graph.name = "blocks.0.norm", graph.role = "parameter"},
                %x: tensor<4x8xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64})
    -> (tensor<f32> {graph.name = "loss"}) {
  %n = graph.constant dense<8.0> : tensor<f32>
  %e = graph.constant dense<1.0e-6> : tensor<f32>
  %0 = graph.mul %x, %x : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 1>} : (tensor<4x8xf32>) -> tensor<4xf32>
  %2 = graph.reshape %1 : (tensor<4xf32>) -> tensor<4x1xf32>
  %3 = graph.div %2, %n : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
  %4 = graph.add %3, %e : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
  %5 = graph.rsqrt %4 : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %6 = graph.mul %x, %5 : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  %7 = graph.mul %6, %w : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %8 = graph.reduce sum %7 {dims = array<i64: 0, 1>} : (tensor<4x8xf32>) -> tensor<f32>
  return %8 : tensor<f32>
}
