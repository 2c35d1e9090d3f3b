// RUN: not cleave-compile %s --mesh=pp=2 --stages=v --optimizer=sgd --emit=executable -o - 2>&1 | FileCheck %s

// What the second stage would read in evaluation is updated in the first one.
// CHECK: error: {{.*}} reads 'm' in stage 1, and '@train' updates it in stage 0
func.func @loss(%x: tensor<2x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64},
                %w: tensor<4x4xf32> {graph.name = "w", graph.role = "parameter"},
                %v: tensor<4x4xf32> {graph.name = "v", graph.role = "parameter"},
                %m: tensor<4xf32> {graph.name = "m", graph.role = "buffer"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<4xf32> {graph.updates = "m"}) {
  %0 = graph.linear %x, %w : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %1 = graph.tanh %0 : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %4 = graph.reduce sum %1 {dims = array<i64: 0>} : (tensor<2x4xf32>) -> tensor<4xf32>
  %5 = graph.add %m, %4 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = graph.linear %1, %v : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %3 = graph.tanh %2 : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %6 = graph.reduce sum %3 {dims = array<i64: 0, 1>} : (tensor<2x4xf32>) -> tensor<f32>
  return %6, %5 : tensor<f32>, tensor<4xf32>
}
func.func @evaluate(%x: tensor<2x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64},
                %w: tensor<4x4xf32> {graph.name = "w", graph.role = "parameter"},
                %v: tensor<4x4xf32> {graph.name = "v", graph.role = "parameter"},
                %m: tensor<4xf32> {graph.name = "m", graph.role = "buffer"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %0 = graph.linear %x, %w : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %1 = graph.tanh %0 : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %2 = graph.linear %1, %v : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %3 = graph.add %2, %m : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %6 = graph.reduce sum %3 {dims = array<i64: 0, 1>} : (tensor<2x4xf32>) -> tensor<f32>
  return %6 : tensor<f32>
}
