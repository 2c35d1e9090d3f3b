// RUN: cleave-opt %s --graph-differentiate --graph-apply-optimizer=check-finite --graph-derive-evaluate=drop-entry | FileCheck %s
// RUN: cleave-opt %s --graph-differentiate --graph-apply-optimizer --graph-derive-evaluate="drop-entry target=copied" | FileCheck %s --check-prefix=COPIED

// What a model writes to buffers is part of the update, behind the checks. The
// entry for evaluation is the one that is there.

// CHECK-LABEL: func.func @train(
// CHECK: graph.check
// CHECK: %[[M:.*]] = graph.written %{{.*}} of "m" : (tensor<4xf32>) -> tensor<4xf32>
// CHECK: %[[N:.*]] = graph.written %{{.*}} of "n" : (tensor<i64>) -> tensor<i64>
// CHECK: return %{{.*}}, %[[M]], %[[N]],
// CHECK-NOT: func.func @loss
// CHECK-LABEL: func.func @evaluate(
// CHECK-SAME: -> (tensor<f32> {graph.name = "loss"})
// CHECK: graph.add

// A copy writes nothing.

// COPIED-LABEL: func.func @copied(
// COPIED-SAME: -> (tensor<f32> {graph.name = "loss"})
// COPIED: return %{{[0-9]+}} : tensor<f32>
func.func @loss(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                %m: tensor<4xf32> {graph.name = "m", graph.role = "buffer"},
                %n: tensor<i64> {graph.name = "n", graph.role = "buffer"},
                %x: tensor<2x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64})
    -> (tensor<f32> {graph.name = "loss"}, tensor<4xf32> {graph.updates = "m"}, tensor<i64> {graph.updates = "n"}) {
  %0 = graph.mul %x, %w : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 0>} : (tensor<2x4xf32>) -> tensor<4xf32>
  %2 = graph.add %m, %1 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = graph.reduce sum %0 {dims = array<i64: 0, 1>} : (tensor<2x4xf32>) -> tensor<f32>
  %one = graph.constant dense<1> : tensor<i64>
  %4 = graph.add %n, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
  return %3, %2, %4 : tensor<f32>, tensor<4xf32>, tensor<i64>
}
func.func @evaluate(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                    %m: tensor<4xf32> {graph.name = "m", graph.role = "buffer"},
                    %x: tensor<2x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64})
    -> (tensor<f32> {graph.name = "loss"}) {
  %0 = graph.mul %x, %w : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %1 = graph.add %0, %m : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %2 = graph.reduce sum %1 {dims = array<i64: 0, 1>} : (tensor<2x4xf32>) -> tensor<f32>
  return %2 : tensor<f32>
}
