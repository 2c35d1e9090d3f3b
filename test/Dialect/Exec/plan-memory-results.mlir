// RUN: cleave-compile %s --optimizer=sgd --emit=executable | FileCheck %s

// A large result that several entries compute is one tensor, with one offset.
// CHECK: exec.program @evaluate({{.*}} tensor<40000xf32> {exec.offset = [[AT:[0-9]+]] : i64, graph.name = "squares"})
// CHECK: exec.program @train({{.*}} tensor<40000xf32> {exec.offset = [[AT]] : i64, graph.name = "squares"}

func.func @loss(%w: tensor<40000xf32> {graph.name = "w", graph.role = "parameter"},
                %x: tensor<40000xf32> {graph.name = "x", graph.role = "input"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<40000xf32> {graph.name = "squares"}) {
  %0 = graph.mul %w, %x : (tensor<40000xf32>, tensor<40000xf32>) -> tensor<40000xf32>
  %1 = graph.mul %0, %0 : (tensor<40000xf32>, tensor<40000xf32>) -> tensor<40000xf32>
  %2 = graph.reduce sum %1 {dims = array<i64: 0>} : (tensor<40000xf32>) -> tensor<f32>
  return %2, %1 : tensor<f32>, tensor<40000xf32>
}
