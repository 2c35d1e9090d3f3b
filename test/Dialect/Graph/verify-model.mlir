// RUN: cleave-opt %s --graph-verify-model | FileCheck %s
// RUN: cleave-opt %s --graph-verify-model=entry=score | FileCheck %s
// RUN: not cleave-opt %s --graph-verify-model=entry=other 2>&1 | FileCheck %s --check-prefix=OTHER

// OTHER: error: there is no function '@other'; the module has '@loss', '@score'

// CHECK-LABEL: func.func @loss
func.func @loss(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                %x: tensor<4xf32> {graph.name = "x", graph.role = "input"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<4xf32> {graph.name = "products"}) {
  %0 = graph.mul %w, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  return %1, %0 : tensor<f32>, tensor<4xf32>
}
func.func @score(%x: tensor<4xf32> {graph.name = "x", graph.role = "input"})
    -> (tensor<f32> {graph.name = "score"}) {
  %0 = graph.reduce max %x {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}
