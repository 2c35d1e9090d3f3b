// RUN: cleave-opt %s --split-input-file --graph-derive-evaluate=drop-entry | FileCheck %s

// A model that computes another loss in evaluation has an entry for it, which
// draws no random numbers either.

// CHECK-LABEL: func.func @evaluate(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<4xf32> {graph.name = "x", graph.role = "input"})
// CHECK-NEXT: graph.reduce max %[[X]]
// CHECK-NOT: func.func @loss
func.func @loss(%x: tensor<4xf32> {graph.name = "x", graph.role = "input"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %0 = graph.reduce sum %x {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func @evaluate(%x: tensor<4xf32> {graph.name = "x", graph.role = "input"},
                    %rng: tensor<2xi64> {graph.name = "rng", graph.role = "rng"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %0 = graph.dropout %x, %rng {probability = 0.1 : f64, id = 1 : i64} : (tensor<4xf32>, tensor<2xi64>) -> tensor<4xf32>
  %1 = graph.reduce max %0 {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// -----

// One without a loss in evaluation has no such entry.

// CHECK-LABEL: module attributes {graph.unevaluated = "it returns no loss"}
// CHECK-NOT: func.func
module attributes {graph.unevaluated = "it returns no loss"} {
  func.func @loss(%x: tensor<4xf32> {graph.name = "x", graph.role = "input"})
      -> (tensor<f32> {graph.name = "loss"}) {
    %0 = graph.reduce sum %x {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
}
