// RUN: cleave-opt %s --pipe-post-validate | FileCheck %s

// Updates that read a number and a flag of another stage. A flag has no zeros of
// two signs: what validates compares it alone.

// CHECK-LABEL: func.func private @train.V(
// CHECK-SAME: %[[N:.*]]: tensor<i64>, %[[F:.*]]: tensor<i1>, %[[N0:.*]]: tensor<f32>, %[[F0:.*]]: tensor<i1>)
// CHECK: %[[C:.*]] = graph.cast %[[N]]
// CHECK: %[[SAME:.*]] = graph.compare eq %[[C]], %[[N0]]
// CHECK: %[[SET:.*]] = graph.compare ne %[[C]],
// CHECK: %[[RIGHT:.*]] = graph.and %[[SAME]], %[[SET]]
// CHECK: %[[ALIKE:.*]] = graph.compare eq %[[F]], %[[F0]]
// CHECK-NOT: graph.compare
// CHECK: %[[BOTH:.*]] = graph.and %[[RIGHT]], %[[ALIKE]]
// CHECK: return %[[BOTH]]

spmd.mesh @mesh <["pp" = 2]>
pipe.program @train(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                    %v: tensor<4xf32> {graph.name = "v", graph.role = "parameter"},
                    %k: tensor<i64> {graph.name = "k", graph.role = "buffer"})
    -> (tensor<4xf32> {graph.updates = "w"})
    attributes {micro_batches = 1 : i64, pipe.stages = 2 : i64} {
  %n, %f = pipe.invoke @train.1N(%v, %k) {part = "N", stage = 1, once, split = array<i64: -1, -1>, results = ["value", "value"]}
      : (tensor<4xf32>, tensor<i64>) -> (tensor<i64>, tensor<i1>)
  %new = pipe.invoke @train.U(%w, %n, %f) {part = "U", once, split = array<i64: -1, -1, -1>, results = ["value"]}
      : (tensor<4xf32>, tensor<i64>, tensor<i1>) -> tensor<4xf32>
  pipe.return %new : tensor<4xf32>
}
func.func private @train.1N(%v: tensor<4xf32>, %k: tensor<i64>) -> (tensor<i64>, tensor<i1>) {
  %s = graph.reduce max %v {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  %m = graph.reduce min %v {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  %f = graph.compare lt %s, %m : (tensor<f32>, tensor<f32>) -> tensor<i1>
  return %k, %f : tensor<i64>, tensor<i1>
}
func.func private @train.U(%w: tensor<4xf32>, %n: tensor<i64>, %f: tensor<i1>) -> tensor<4xf32> {
  %c = graph.cast %n : (tensor<i64>) -> tensor<f32>
  %a = graph.mul %w, %c : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %b = graph.select %f, %a, %w : (tensor<i1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %b : tensor<4xf32>
}
