// RUN: cleave-opt %s --graph-differentiate --graph-apply-optimizer="optimizer=sgd check-finite=true" | FileCheck %s
// RUN: cleave-opt %s --graph-differentiate --graph-apply-optimizer="optimizer=sgd check-finite=true max-grad-norm=1.0" | FileCheck %s --check-prefix=CLIP

// Each loss is checked, and all gradients together; updates come behind.

// CHECK-LABEL: func.func @train(
// CHECK-SAME: -> (tensor<f32> {graph.name = "loss"}, tensor<f32> {graph.name = "other"}, tensor<4xf32> {graph.name = "seen"}, tensor<4xf32> {graph.updates = "w"}
// CHECK: %[[LOSS:.*]] = graph.reduce sum
// CHECK: %[[OTHER:.*]] = graph.reduce sum
// CHECK: %[[GW:.*]] = graph.gradient %{{.*}} of "w"
// CHECK-NOT: graph.sgd
// CHECK: %[[GB:.*]] = graph.gradient %{{.*}} of "b"
// CHECK-NEXT: %[[ABS:.*]] = graph.abs %[[LOSS]]
// CHECK-NEXT: %[[INF:.*]] = graph.constant dense<0x7F800000> : tensor<f32>
// CHECK-NEXT: %[[FINITE:.*]] = graph.compare lt %[[ABS]], %[[INF]]
// CHECK-NEXT: graph.check %[[FINITE]], "the loss is not finite"
// CHECK-NEXT: graph.abs %[[OTHER]]
// CHECK: graph.check %{{.*}}, "the loss is not finite"
// CHECK-NOT: graph.abs
// CHECK: %[[ZW:.*]] = graph.mul %[[GW]], %{{.*}} : (tensor<4xf32>, tensor<f32>)
// CHECK: %[[ZB:.*]] = graph.mul %[[GB]], %{{.*}} : (tensor<4xf32>, tensor<f32>)
// CHECK: %[[NORM:.*]] = graph.global_norm %[[ZW]], %[[ZB]]
// CHECK: %[[SAME:.*]] = graph.compare eq %[[NORM]], %{{.*}}
// CHECK-NEXT: graph.check %[[SAME]], "a gradient is not finite"
// CHECK-NEXT: graph.sgd %{{.*}}, %[[GW]]
// CHECK-NEXT: graph.sgd %{{.*}}, %[[GB]]

// The norm of a clip is not finite where a gradient is not.

// CLIP: graph.check %{{.*}}, "the loss is not finite"
// CLIP: graph.global_norm
// CLIP-NOT: graph.global_norm
// CLIP: graph.check %{{.*}}, "the norm of the gradients is not finite"
// CLIP-NOT: graph.check
func.func @loss(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                %b: tensor<4xf32> {graph.name = "b", graph.role = "parameter"})
    -> (tensor<f32> {graph.loss, graph.name = "loss"}, tensor<f32> {graph.loss, graph.name = "other"},
        tensor<4xf32> {graph.name = "seen"}) {
  %0 = graph.mul %w, %b : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  %2 = graph.exp %w : (tensor<4xf32>) -> tensor<4xf32>
  %3 = graph.reduce sum %2 {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  return %1, %3, %0 : tensor<f32>, tensor<f32>, tensor<4xf32>
}
