// RUN: cleave-opt %s --exec-unroll-schedule | FileCheck %s

// Each stage of a position has the checks of the update. They are made once, in
// the update that runs first there; those of one message are not one check.

// CHECK-LABEL: exec.program @train.0(
// CHECK: exec.run @train.2U(
// CHECK-NEXT: exec.run @train.U(

// CHECK-LABEL: func.func private @train.U(
// CHECK-NOT: graph.check
// CHECK-LABEL: func.func private @train.1U(
// CHECK-COUNT-2: graph.check {{.*}}, "it is not there"
// CHECK-NOT: graph.check
// CHECK-LABEL: func.func private @train.2U(
// CHECK-COUNT-2: graph.check {{.*}}, "it is not there"
// CHECK-NOT: graph.check
pipe.program @train(%w: tensor<4xf32> {graph.name = "w"}, %v: tensor<4xf32> {graph.name = "v"},
                    %u: tensor<4xf32> {graph.name = "u"}, %a: tensor<i1> {graph.name = "a"}, %b: tensor<i1> {graph.name = "b"})
    -> (tensor<4xf32> {graph.updates = "w"}, tensor<4xf32> {graph.updates = "v"},
        tensor<4xf32> {graph.updates = "u"})
    attributes {micro_batches = 1 : i64, pipe.stages = 3 : i64, stage_map = "modular",
                schedule = "2U U | 1U"} {
  %w2 = pipe.invoke @train.U(%w, %a, %b) {part = "U", once, split = array<i64: -1, -1, -1>, results = ["value"]}
      : (tensor<4xf32>, tensor<i1>, tensor<i1>) -> tensor<4xf32>
  %v2 = pipe.invoke @train.1U(%v, %a, %b) {part = "U", once, stage = 1, split = array<i64: -1, -1, -1>, results = ["value"]}
      : (tensor<4xf32>, tensor<i1>, tensor<i1>) -> tensor<4xf32>
  %u2 = pipe.invoke @train.2U(%u, %a, %b) {part = "U", once, stage = 2, split = array<i64: -1, -1, -1>, results = ["value"]}
      : (tensor<4xf32>, tensor<i1>, tensor<i1>) -> tensor<4xf32>
  pipe.return %w2, %v2, %u2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
func.func private @train.U(%x: tensor<4xf32>, %a: tensor<i1>, %b: tensor<i1>) -> tensor<4xf32> {
  graph.check %a, "it is not there" {pipe.check = 0} : tensor<i1>
  graph.check %b, "it is not there" {pipe.check = 1} : tensor<i1>
  %y = graph.add %x, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
func.func private @train.1U(%x: tensor<4xf32>, %a: tensor<i1>, %b: tensor<i1>) -> tensor<4xf32> {
  graph.check %a, "it is not there" {pipe.check = 0} : tensor<i1>
  graph.check %b, "it is not there" {pipe.check = 1} : tensor<i1>
  %y = graph.add %x, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
func.func private @train.2U(%x: tensor<4xf32>, %a: tensor<i1>, %b: tensor<i1>) -> tensor<4xf32> {
  graph.check %a, "it is not there" {pipe.check = 0} : tensor<i1>
  graph.check %b, "it is not there" {pipe.check = 1} : tensor<i1>
  %y = graph.add %x, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
