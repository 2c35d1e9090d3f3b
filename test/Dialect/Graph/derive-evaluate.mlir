// RUN: cleave-opt %s --graph-derive-evaluate | FileCheck %s
// RUN: not cleave-opt %s --graph-derive-evaluate=entry=draws 2>&1 | FileCheck %s --check-prefix=DRAWS

// CHECK-LABEL: func.func @loss(
// CHECK: graph.dropout
// CHECK-LABEL: func.func @evaluate(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<1x2x4x8xf32> {graph.name = "x", graph.role = "input"})
// CHECK-SAME: -> (tensor<f32> {graph.name = "loss"})
// CHECK-NEXT: %[[O:.*]], %{{.*}} = graph.attention %[[X]], %[[X]], %[[X]] {causal, dropout_id = 2 : i64, scale = 3.500000e-01 : f64} :
// CHECK-NEXT: graph.reduce sum %[[O]]
func.func @loss(%x: tensor<1x2x4x8xf32> {graph.name = "x", graph.role = "input"},
                %rng: tensor<2xi64> {graph.name = "rng", graph.role = "rng"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %0 = graph.dropout %x, %rng {probability = 0.1 : f64, id = 1 : i64} : (tensor<1x2x4x8xf32>, tensor<2xi64>) -> tensor<1x2x4x8xf32>
  %1, %lse = graph.attention %0, %0, %0 rng %rng {scale = 0.35 : f64, causal, dropout = 0.1 : f64, dropout_id = 2 : i64} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<2xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %2 = graph.reduce sum %1 {dims = array<i64: 0, 1, 2, 3>} : (tensor<1x2x4x8xf32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// The generator's state as a number would be missed.

// DRAWS: error: 'graph.cast' op reads the random generator's state and cannot do without it in evaluation
func.func @draws(%rng: tensor<2xi64> {graph.name = "rng", graph.role = "rng"}) -> tensor<f32> {
  %0 = graph.cast %rng : (tensor<2xi64>) -> tensor<2xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 0>} : (tensor<2xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}
