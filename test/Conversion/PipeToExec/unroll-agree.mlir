// RUN: cleave-opt %s --exec-unroll-schedule | FileCheck %s

// All positions agree before their first update, whatever the list says: one
// that came there before it has received everything would wait for a sender
// that first waits for it.

// Position 0 sends its sum and waits until it is taken.
// CHECK-LABEL: exec.program @train.0(
// CHECK: exec.run @train.F.1.send.last(
// CHECK-NEXT: exec.run @train.F.1.sent.last(
// CHECK-NEXT: exec.run @train.stop.0()
// CHECK-NEXT: exec.run @train.U(
// CHECK-NEXT: exec.return

// Position 1 takes it first, though its other stage could update before.
// CHECK-LABEL: exec.program @train.1(
// CHECK: exec.run @train.1F(
// CHECK: exec.run @train.F.1.received.last(
// CHECK-NEXT: exec.run @train.stop.1()
// CHECK-NEXT: exec.run @train.1U(
// CHECK-NEXT: exec.run @train.3U(
// CHECK-NEXT: exec.return
pipe.program @train(%w: tensor<4xf32> {graph.name = "w"}, %v: tensor<4xf32> {graph.name = "v"},
                    %u: tensor<4xf32> {graph.name = "u"})
    -> (tensor<4xf32> {graph.updates = "w"}, tensor<4xf32> {graph.updates = "v"},
        tensor<4xf32> {graph.updates = "u"})
    attributes {micro_batches = 1 : i64, pipe.stages = 4 : i64, stage_map = "modular",
                schedule = "F0 F0>3 U | 1F0 1U 3<F0 3U"} {
  %f = pipe.invoke @train.F(%w) {part = "F", split = array<i64: -1>, results = ["accumulate"]}
      : (tensor<4xf32>) -> tensor<4xf32>
  %g = pipe.invoke @train.1F(%v) {part = "F", stage = 1, split = array<i64: -1>, results = ["accumulate"]}
      : (tensor<4xf32>) -> tensor<4xf32>
  %w2 = pipe.invoke @train.U(%f) {part = "U", once, split = array<i64: -1>, results = ["value"]}
      : (tensor<4xf32>) -> tensor<4xf32>
  %v2 = pipe.invoke @train.1U(%g) {part = "U", once, stage = 1, split = array<i64: -1>, results = ["value"]}
      : (tensor<4xf32>) -> tensor<4xf32>
  %u2 = pipe.invoke @train.3U(%u, %f) {part = "U", once, stage = 3, split = array<i64: -1, -1>, results = ["value"]}
      : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  pipe.return %w2, %v2, %u2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
func.func private @train.F(%x: tensor<4xf32>) -> tensor<4xf32> {
  %passed = graph.constant dense<true> : tensor<i1>
  graph.check %passed, "it is said at the end" : tensor<i1>
  return %x : tensor<4xf32>
}
func.func private @train.1F(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
func.func private @train.U(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
func.func private @train.1U(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
func.func private @train.3U(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %z = graph.add %x, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %z : tensor<4xf32>
}
