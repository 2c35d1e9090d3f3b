// RUN: cleave-opt %s --graph-delay-updates="delay=*.a=2,*.b=1" --split-input-file | FileCheck %s

// Each update reads the gradient that has waited for its delay, with the number
// of its own step; the check reads the gradients of this step.
// CHECK-LABEL: func.func @train(
// CHECK-SAME: %[[A:[a-z0-9]+]]: tensor<4xf32> {graph.name = "l.a"
// CHECK-SAME: %[[B:[a-z0-9]+]]: tensor<2xf32> {graph.name = "l.b"
// CHECK-SAME: %[[C:[a-z0-9]+]]: tensor<2xf32> {graph.name = "l.c"
// CHECK-SAME: %[[STEP:[a-z0-9]+]]: tensor<i64> {graph.name = "step"
// CHECK-SAME: %[[A1:[a-z0-9]+]]: tensor<4xf32> {graph.name = "l.a.pending_1", graph.of = "l.a", graph.role = "state", graph.slot = "pending_1"}
// CHECK-SAME: %[[A2:[a-z0-9]+]]: tensor<4xf32> {graph.name = "l.a.pending_2"
// CHECK-SAME: %[[B1:[a-z0-9]+]]: tensor<2xf32> {graph.name = "l.b.pending_1"
// CHECK-DAG: %[[OLD_A:.*]] = graph.gradient %[[A2]] of "l.a.pending_2"
// CHECK-DAG: %[[OLD_B:.*]] = graph.gradient %[[B1]] of "l.b.pending_1"
// CHECK-DAG: %[[TWO:.*]] = graph.constant dense<2>
// CHECK-DAG: %[[DUE:.*]] = graph.compare gt %[[STEP]], %[[TWO]]
// CHECK-DAG: %[[EARLIER:.*]] = graph.sub %[[STEP]], %[[TWO]]
// CHECK-DAG: %[[NUMBER:.*]] = graph.select %[[DUE]], %[[EARLIER]],
// CHECK: %[[GA:.*]] = graph.gradient %{{.*}} of "l.a"
// CHECK: %[[GB:.*]] = graph.gradient %{{.*}} of "l.b"
// CHECK: %[[GC:.*]] = graph.gradient %{{.*}} of "l.c"
// CHECK: %[[NORM:.*]] = graph.global_norm %[[GA]], %[[GB]], %[[GC]]
// CHECK: graph.check
// CHECK: %[[NEW:.*]] = graph.sub %[[A]],
// CHECK: %[[FIRST:.*]] = graph.select %[[DUE]], %[[NEW]], %[[A]]
// CHECK: %[[NEW_C:.*]] = graph.sub %[[C]], %[[GC]]
// CHECK: %[[KEPT2:.*]] = graph.written %[[A1]] of "l.a.pending_2"
// CHECK: %[[KEPT1:.*]] = graph.written %[[GA]] of "l.a.pending_1"
// CHECK: %[[KEPT_B:.*]] = graph.written %[[GB]] of "l.b.pending_1"
// CHECK: return %[[FIRST]], %{{.*}}, %[[NEW_C]], %[[KEPT2]], %[[KEPT1]], %[[KEPT_B]]
func.func @train(
    %a: tensor<4xf32> {graph.name = "l.a", graph.role = "parameter"},
    %b: tensor<2xf32> {graph.name = "l.b", graph.role = "parameter"},
    %c: tensor<2xf32> {graph.name = "l.c", graph.role = "parameter"},
    %step: tensor<i64> {graph.name = "step", graph.role = "scalar"})
    -> (tensor<4xf32> {graph.updates = "l.a"}, tensor<2xf32> {graph.updates = "l.b"},
        tensor<2xf32> {graph.updates = "l.c"}) {
  %ga = graph.gradient %a of "l.a" : (tensor<4xf32>) -> tensor<4xf32>
  %gb = graph.gradient %b of "l.b" : (tensor<2xf32>) -> tensor<2xf32>
  %gc = graph.gradient %c of "l.c" : (tensor<2xf32>) -> tensor<2xf32>
  %norm = graph.global_norm %ga, %gb, %gc : (tensor<4xf32>, tensor<2xf32>, tensor<2xf32>) -> tensor<f32>
  %zero = graph.constant dense<0.0> : tensor<f32>
  %flag = graph.compare eq %norm, %zero : (tensor<f32>, tensor<f32>) -> tensor<i1>
  graph.check %flag, "a gradient is not finite" : tensor<i1>
  %number = graph.cast %step : (tensor<i64>) -> tensor<f32>
  %sa = graph.mul %ga, %number : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %na = graph.sub %a, %sa : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %nb = graph.sub %b, %gb : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %nc = graph.sub %c, %gc : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return %na, %nb, %nc : tensor<4xf32>, tensor<2xf32>, tensor<2xf32>
}
