// RUN: cleave-opt %s --graph-interlock="modules=3 horizon=1" | FileCheck %s
// RUN: cleave-opt %s --graph-interlock="modules=layers.1.,layers.2. horizon=2" | FileCheck %s --check-prefix=TWO
// RUN: cleave-opt %s --graph-interlock="modules=3 horizon=2 head=h" --graph-differentiate="entry=interlocked drop-entry" --canonicalize --cse | FileCheck %s --check-prefix=TRAIN

// With a horizon of 1, each head has its own copy of the module before it, to
// which the gradient of the one before that does not come. A table that is also
// the head's is another one in each head; what the final head reads of inputs
// moves to the front.

// CHECK-LABEL: func.func @loss(
// CHECK-NOT: auxiliary
// CHECK-LABEL: func.func @interlocked(
// CHECK-SAME: %[[W0:[a-z0-9]+]]: tensor<4x4xf32> {graph.name = "layers.0.w"
// CHECK-SAME: %[[W1:[a-z0-9]+]]: tensor<4x4xf32> {graph.name = "layers.1.w"
// CHECK-SAME: %[[W2:[a-z0-9]+]]: tensor<4x4xf32> {graph.name = "layers.2.w"
// CHECK-SAME: %[[HEAD:[a-z0-9]+]]: tensor<4x4xf32> {graph.aliases = ["tied"], graph.name = "h"
// CHECK-SAME: %[[A1:[a-z0-9]+]]: tensor<4x4xf32> {graph.initial = "h", graph.name = "auxiliary.1.h", graph.role = "parameter", graph.weight_decay = 0.000000e+00 : f64}
// CHECK-SAME: %[[A2:[a-z0-9]+]]: tensor<4x4xf32> {graph.initial = "h", graph.name = "auxiliary.2.h",
// CHECK-SAME: -> (tensor<f32> {graph.loss, graph.name = "loss"}, tensor<f32> {graph.loss, graph.name = "auxiliary_loss.1"}, tensor<f32> {graph.loss, graph.name = "auxiliary_loss.2"})
// CHECK-NEXT: %[[T:.*]] = graph.neg %[[X:[a-z0-9]+]] :
// CHECK-NEXT: %[[H1:.*]] = graph.linear %[[X]], %[[W0]]
// CHECK-NEXT: %[[C1:.*]] = graph.linear %[[X]], %[[W0]]
// CHECK-NEXT: %[[L1:.*]] = graph.linear %[[C1]], %[[A1]]
// CHECK-NEXT: %[[M1:.*]] = graph.mul %[[L1]], %[[T]]
// CHECK-NEXT: %[[LOSS1:.*]] = graph.reduce sum %[[M1]]
// CHECK-NEXT: %[[H2:.*]] = graph.linear %[[H1]], %[[W1]]
// CHECK-NEXT: %[[S1:.*]] = graph.stop_gradient %[[H1]]
// CHECK-NEXT: %[[C2:.*]] = graph.linear %[[S1]], %[[W1]]
// CHECK-NEXT: %[[L2:.*]] = graph.linear %[[C2]], %[[A2]]
// CHECK-NEXT: %[[M2:.*]] = graph.mul %[[L2]], %[[T]]
// CHECK-NEXT: %[[LOSS2:.*]] = graph.reduce sum %[[M2]]
// CHECK-NEXT: %[[S2:.*]] = graph.stop_gradient %[[H2]]
// CHECK-NEXT: %[[H3:.*]] = graph.linear %[[S2]], %[[W2]]
// CHECK-NEXT: %[[L3:.*]] = graph.linear %[[H3]], %[[HEAD]]
// CHECK-NEXT: %[[M3:.*]] = graph.mul %[[L3]], %[[T]]
// CHECK-NEXT: %[[LOSS:.*]] = graph.reduce sum %[[M3]]
// CHECK-NEXT: return %[[LOSS]], %[[LOSS1]], %[[LOSS2]]

// With 2, module 1 is copied for head 2, with the parameters of module 2
// stopped; head 1 trains itself alone.

// TWO-LABEL: func.func @interlocked(
// TWO-SAME: %[[W0:[a-z0-9]+]]: tensor<4x4xf32> {graph.name = "layers.0.w"
// TWO-SAME: %[[W1:[a-z0-9]+]]: tensor<4x4xf32> {graph.name = "layers.1.w"
// TWO: %[[H1:.*]] = graph.linear %[[X:.*]], %[[W0]]
// TWO: %[[S1:.*]] = graph.stop_gradient %[[H1]]
// TWO: graph.linear %[[S1]]
// TWO: %[[LOSS1:.*]] = graph.reduce sum
// TWO: %[[C1:.*]] = graph.linear %[[X]], %[[W0]]
// TWO: %[[D1:.*]] = graph.stop_gradient %[[W1]]
// TWO: %[[C2:.*]] = graph.linear %[[C1]], %[[D1]]
// TWO: graph.linear %[[C2]]
// TWO: %[[LOSS2:.*]] = graph.reduce sum
// TWO: return %{{.*}}, %[[LOSS1]], %[[LOSS2]]

// Differentiated and joined, nothing is left of all that: three layers and
// three heads.

// TRAIN-NOT: @interlocked
// TRAIN-LABEL: func.func @train(
// TRAIN-SAME: (tensor<f32> {graph.loss, graph.name = "loss"}, tensor<f32> {graph.loss, graph.name = "auxiliary_loss.1"}
// TRAIN-COUNT-6: graph.linear
// TRAIN-NOT: graph.linear
// TRAIN: graph.seed
// TRAIN-NOT: graph.stop_gradient
func.func @loss(%w0: tensor<4x4xf32> {graph.name = "layers.0.w", graph.role = "parameter"},
                %w1: tensor<4x4xf32> {graph.name = "layers.1.w", graph.role = "parameter"},
                %w2: tensor<4x4xf32> {graph.name = "layers.2.w", graph.role = "parameter"},
                %h: tensor<4x4xf32> {graph.aliases = ["tied"], graph.name = "h", graph.role = "parameter", graph.weight_decay = 0.0 : f64},
                %x: tensor<2x4xf32> {graph.name = "x", graph.role = "input"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %0 = graph.linear %x, %w0 : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %1 = graph.linear %0, %w1 : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %2 = graph.linear %1, %w2 : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %3 = graph.linear %2, %h : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %t = graph.neg %x : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %4 = graph.mul %3, %t : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %5 = graph.reduce sum %4 {dims = array<i64: 0, 1>} : (tensor<2x4xf32>) -> tensor<f32>
  return %5 : tensor<f32>
}
