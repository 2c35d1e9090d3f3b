// RUN: cleave-opt %s --graph-differentiate --graph-apply-optimizer="optimizer=sgd" | FileCheck %s

// A parameter names a function of the module as its update. Its state and its
// scalars are arguments of the step; the weight lies as heads and their size,
// and the update, which is of elements side by side, does, too.

// CHECK-NOT: module @updates
// CHECK-LABEL: func.func @train(
// CHECK-SAME: %[[W:[^:]*]]: tensor<2x2x8xf32> {graph.framework_shape
// CHECK-SAME: %[[M:[^:]*]]: tensor<2x2x8xf32> {{{[^}]*}}graph.name = "w.mean", graph.of = "w"
// CHECK-SAME: %[[N:[^:]*]]: tensor<f32> {graph.name = "w.count", graph.of = "w", graph.parameter_dims = array<i64>, graph.role = "state", graph.slot = "count"}
// CHECK-SAME: %[[R:[^:]*]]: tensor<f32> {graph.name = "update.0", graph.role = "scalar"}
// CHECK-SAME: {graph.updates = "w"}{{.*}}{graph.updates = "w.mean"}, tensor<f32> {graph.updates = "w.count"}
// CHECK: %[[G:.*]] = graph.gradient
// CHECK: %[[HALF:.*]] = graph.constant dense<5.000000e-01> : tensor<f32>
// CHECK: %[[KEPT:.*]] = graph.mul %[[M]], %[[HALF]] : (tensor<2x2x8xf32>, tensor<f32>)
// CHECK: %[[MEAN:.*]] = graph.add %[[KEPT]], %[[G]]
// CHECK: %[[STEP:.*]] = graph.mul %[[MEAN]], %[[R]]
// CHECK: %[[NEW:.*]] = graph.sub %[[W]], %[[STEP]]
// CHECK: %[[COUNT:.*]] = graph.add %[[N]], %[[HALF]]
// CHECK: return %{{.*}}, %[[NEW]], %[[MEAN]], %[[COUNT]]
module {
  module @updates {
    func.func @decay(%p: tensor<4x8xf32> {graph.role = "parameter"}, %g: tensor<4x8xf32> {graph.role = "gradient"},
        %m: tensor<4x8xf32> {graph.name = "mean", graph.role = "state"},
        %n: tensor<f32> {graph.name = "count", graph.role = "state"},
        %rate: tensor<f32> {graph.name = "update.0", graph.role = "scalar"}) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<f32>) {
      %c = graph.constant dense<0.5> : tensor<f32>
      %0 = graph.mul %m, %c : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
      %1 = graph.add %0, %g : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
      %2 = graph.mul %1, %rate : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
      %3 = graph.sub %p, %2 : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
      %4 = graph.add %n, %c : (tensor<f32>, tensor<f32>) -> tensor<f32>
      return %3, %1, %4 : tensor<4x8xf32>, tensor<4x8xf32>, tensor<f32>
    }
  }
  func.func @loss(%x: tensor<2x8xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"},
      %w: tensor<2x2x8xf32> {graph.name = "w", graph.framework_shape = array<i64: 4, 8>, graph.role = "parameter", graph.optimizer = {rule = "@decay"}}) -> (tensor<f32> {graph.name = "loss"}) {
    %y = graph.contract "bi,hdi->bhd" %x, %w : (tensor<2x8xf32>, tensor<2x2x8xf32>) -> tensor<2x2x2xf32>
    %loss = graph.reduce sum %y {dims = array<i64: 0, 1, 2>} : (tensor<2x2x2xf32>) -> tensor<f32>
    return %loss : tensor<f32>
  }
}
