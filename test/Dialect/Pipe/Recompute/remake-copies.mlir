// RUN: cleave-opt %s --pipe-remake-copies --pipe-schedule --pipe-verify | FileCheck %s

// Backward makes the copies of %w and %v again from the parameters, before it
// first reads them; forward reads those of the gather part. What is gathered
// over ranks (%u), what is not smaller (%n) and what the update reads stay.

spmd.mesh @mesh <["dp" = 2]>

// CHECK-LABEL: pipe.program @one(
// CHECK-SAME: %[[W:[^:]*]]: tensor<8x8xf32>, %[[V:[^:]*]]: tensor<8x8xf32>, %[[U:[^:]*]]: tensor<4x8xf32>
// CHECK: %[[G:.*]]:4 = pipe.invoke @one.G(
// CHECK: %[[S:.*]] = pipe.invoke @one.F(%[[G]]#0, %[[G]]#1, %[[G]]#2, %[[G]]#3,
// CHECK: pipe.invoke @one.B(%[[S]], %[[W]], %[[V]], %[[G]]#2, %[[G]]#3)
// CHECK: pipe.invoke @one.U(%[[W]], %[[G]]#1,
pipe.program @one(%w: tensor<8x8xf32>, %v: tensor<8x8xf32>, %u: tensor<4x8xf32>, %n: tensor<8x8xf32>,
                  %x: tensor<4x8xbf16>)
    -> (tensor<8x8xf32> {graph.updates = "w"})
    attributes {micro_batches = 1 : i64} {
  %0:4 = pipe.invoke @one.G(%w, %v, %u, %n) {part = "G", once, split = array<i64: -1, -1, -1, -1>,
      results = ["value", "value", "value", "value"]}
      : (tensor<8x8xf32>, tensor<8x8xf32>, tensor<4x8xf32>, tensor<8x8xf32>)
      -> (tensor<8x8xbf16>, tensor<8x8xbf16>, tensor<8x8xbf16>, tensor<8x8xf32>)
  %1 = pipe.invoke @one.F(%0#0, %0#1, %0#2, %0#3, %x) {part = "F", split = array<i64: -1, -1, -1, -1, 0>,
      results = ["saved"]}
      : (tensor<8x8xbf16>, tensor<8x8xbf16>, tensor<8x8xbf16>, tensor<8x8xf32>, tensor<4x8xbf16>) -> tensor<4x8xbf16>
  %2 = pipe.invoke @one.B(%1, %0#0, %0#1, %0#2, %0#3) {part = "B", split = array<i64: -1, -1, -1, -1, -1>,
      results = ["accumulate"]}
      : (tensor<4x8xbf16>, tensor<8x8xbf16>, tensor<8x8xbf16>, tensor<8x8xbf16>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %3 = pipe.invoke @one.U(%w, %0#1, %2) {part = "U", once, split = array<i64: -1, -1, -1>, results = ["value"]}
      : (tensor<8x8xf32>, tensor<8x8xbf16>, tensor<8x8xf32>) -> tensor<8x8xf32>
  pipe.return %3 : tensor<8x8xf32>
}

func.func private @one.G(%w: tensor<8x8xf32>, %v: tensor<8x8xf32>, %u: tensor<4x8xf32>, %n: tensor<8x8xf32>)
    -> (tensor<8x8xbf16>, tensor<8x8xbf16>, tensor<8x8xbf16>, tensor<8x8xf32>) {
  %0 = graph.cast %w : (tensor<8x8xf32>) -> tensor<8x8xbf16>
  %1 = graph.cast %v : (tensor<8x8xf32>) -> tensor<8x8xbf16>
  %2 = graph.cast %u : (tensor<4x8xf32>) -> tensor<4x8xbf16>
  %3 = spmd.all_gather %2 by <@mesh, [{"dp"}, {}]> : tensor<4x8xbf16> -> tensor<8x8xbf16>
  %4 = graph.neg %n : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0, %1, %3, %4 : tensor<8x8xbf16>, tensor<8x8xbf16>, tensor<8x8xbf16>, tensor<8x8xf32>
}

func.func private @one.F(%w: tensor<8x8xbf16>, %v: tensor<8x8xbf16>, %u: tensor<8x8xbf16>, %n: tensor<8x8xf32>, %x: tensor<4x8xbf16>)
    -> tensor<4x8xbf16> {
  %0 = graph.linear %x, %w : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
  %1 = graph.linear %0, %v : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
  %2 = graph.linear %1, %u : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
  return %2 : tensor<4x8xbf16>
}

// CHECK-LABEL: func.func private @one.B(
// CHECK-SAME: %[[S:[^:]*]]: tensor<4x8xbf16>, %[[W:[^:]*]]: tensor<8x8xf32>, %[[V:[^:]*]]: tensor<8x8xf32>, %[[U:[^:]*]]: tensor<8x8xbf16>
// CHECK-NEXT: %[[A:.*]] = graph.linear %[[S]], %[[U]]
// CHECK-NEXT: %[[C:.*]] = graph.cast %[[V]] : (tensor<8x8xf32>) -> tensor<8x8xbf16>
// CHECK-NEXT: %[[B:.*]] = graph.linear %[[A]], %[[C]]
// CHECK-NEXT: %[[D:.*]] = graph.cast %[[W]] : (tensor<8x8xf32>) -> tensor<8x8xbf16>
// CHECK-NEXT: graph.linear %[[B]], %[[D]]
func.func private @one.B(%s: tensor<4x8xbf16>, %w: tensor<8x8xbf16>, %v: tensor<8x8xbf16>, %u: tensor<8x8xbf16>, %n: tensor<8x8xf32>)
    -> tensor<8x8xf32> {
  %0 = graph.linear %s, %u : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
  %1 = graph.linear %0, %v : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
  %2 = graph.linear %1, %w : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
  %3 = graph.contract "bo,bi->oi" %2, %s {result_element = f32} : (tensor<4x8xbf16>, tensor<4x8xbf16>) -> tensor<8x8xf32>
  %4 = graph.add %3, %n : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %4 : tensor<8x8xf32>
}

func.func private @one.U(%w: tensor<8x8xf32>, %v: tensor<8x8xbf16>, %g: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = graph.sub %w, %g : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// Several micro-batches share the copy of the gather part.

// CHECK-LABEL: pipe.program @several(
// CHECK: %[[G:.*]] = pipe.invoke @several.G(
// CHECK: pipe.invoke @several.B(%{{.*}}, %[[G]])
pipe.program @several(%w: tensor<8x8xf32>, %x: tensor<4x8xbf16>) -> tensor<2x8xbf16>
    attributes {micro_batches = 2 : i64} {
  %0 = pipe.invoke @several.G(%w) {part = "G", once, split = array<i64: -1>, results = ["value"]}
      : (tensor<8x8xf32>) -> tensor<8x8xbf16>
  %1 = pipe.invoke @several.F(%0, %x) {part = "F", split = array<i64: -1, 0>, results = ["saved"]}
      : (tensor<8x8xbf16>, tensor<4x8xbf16>) -> tensor<2x8xbf16>
  %2 = pipe.invoke @several.B(%1, %0) {part = "B", split = array<i64: -1, -1>, results = ["accumulate"]}
      : (tensor<2x8xbf16>, tensor<8x8xbf16>) -> tensor<2x8xbf16>
  pipe.return %2 : tensor<2x8xbf16>
}

func.func private @several.G(%w: tensor<8x8xf32>) -> tensor<8x8xbf16> {
  %0 = graph.cast %w : (tensor<8x8xf32>) -> tensor<8x8xbf16>
  return %0 : tensor<8x8xbf16>
}

func.func private @several.F(%w: tensor<8x8xbf16>, %x: tensor<2x8xbf16>) -> tensor<2x8xbf16> {
  %0 = graph.linear %x, %w : (tensor<2x8xbf16>, tensor<8x8xbf16>) -> tensor<2x8xbf16>
  return %0 : tensor<2x8xbf16>
}

func.func private @several.B(%s: tensor<2x8xbf16>, %w: tensor<8x8xbf16>) -> tensor<2x8xbf16> {
  %0 = graph.linear %s, %w : (tensor<2x8xbf16>, tensor<8x8xbf16>) -> tensor<2x8xbf16>
  return %0 : tensor<2x8xbf16>
}

// Copies that are joined: %w is read already, %v is not.
// CHECK-LABEL: pipe.program @joined(
// CHECK-SAME: %[[W:[^:]*]]: tensor<2x8xf32>, %[[V:[^:]*]]: tensor<6x8xf32>
// CHECK: pipe.invoke @joined.B(%{{.*}}, %[[V]], %[[W]])
pipe.program @joined(%w: tensor<2x8xf32>, %v: tensor<6x8xf32>, %x: tensor<4x8xbf16>)
    -> (tensor<8x8xf32> {graph.updates = "w"})
    attributes {micro_batches = 1 : i64} {
  %0 = pipe.invoke @joined.G(%w, %v) {part = "G", once, split = array<i64: -1, -1>,
      results = ["value"]} : (tensor<2x8xf32>, tensor<6x8xf32>) -> tensor<8x8xbf16>
  %1 = pipe.invoke @joined.F(%0, %x) {part = "F", split = array<i64: -1, 0>,
      results = ["saved"]} : (tensor<8x8xbf16>, tensor<4x8xbf16>) -> tensor<4x8xbf16>
  %2 = pipe.invoke @joined.B(%1, %0, %w) {part = "B", split = array<i64: -1, -1, -1>,
      results = ["accumulate"]} : (tensor<4x8xbf16>, tensor<8x8xbf16>, tensor<2x8xf32>) -> tensor<8x8xf32>
  %3 = pipe.invoke @joined.U(%2) {part = "U", once, split = array<i64: -1>, results = ["value"]}
      : (tensor<8x8xf32>) -> tensor<8x8xf32>
  pipe.return %3 : tensor<8x8xf32>
}

func.func private @joined.G(%w: tensor<2x8xf32>, %v: tensor<6x8xf32>) -> tensor<8x8xbf16> {
  %0 = graph.cast %w : (tensor<2x8xf32>) -> tensor<2x8xbf16>
  %1 = graph.cast %v : (tensor<6x8xf32>) -> tensor<6x8xbf16>
  %2 = graph.concat %0, %1 {dim = 0 : i64} : (tensor<2x8xbf16>, tensor<6x8xbf16>) -> tensor<8x8xbf16>
  return %2 : tensor<8x8xbf16>
}

func.func private @joined.F(%w: tensor<8x8xbf16>, %x: tensor<4x8xbf16>) -> tensor<4x8xbf16> {
  %0 = graph.linear %x, %w : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
  return %0 : tensor<4x8xbf16>
}

// CHECK-LABEL: func.func private @joined.B(
// CHECK-SAME: %[[S:[^:]*]]: tensor<4x8xbf16>, %[[V:[^:]*]]: tensor<6x8xf32>, %[[W:[^:]*]]: tensor<2x8xf32>
// CHECK-NEXT: %[[N:.*]] = graph.neg %[[W]]
// CHECK-NEXT: %[[A:.*]] = graph.cast %[[W]] : (tensor<2x8xf32>) -> tensor<2x8xbf16>
// CHECK-NEXT: %[[B:.*]] = graph.cast %[[V]] : (tensor<6x8xf32>) -> tensor<6x8xbf16>
// CHECK-NEXT: %[[J:.*]] = graph.concat %[[A]], %[[B]] {dim = 0 : i64}
// CHECK-NEXT: graph.linear %[[S]], %[[J]]
func.func private @joined.B(%s: tensor<4x8xbf16>, %w: tensor<8x8xbf16>, %n: tensor<2x8xf32>)
    -> tensor<8x8xf32> {
  %0 = graph.neg %n : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = graph.linear %s, %w : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
  %2 = graph.contract "ao,ai->oi" %1, %s {result_element = f32} : (tensor<4x8xbf16>, tensor<4x8xbf16>) -> tensor<8x8xf32>
  %3 = graph.slice %2 {offsets = array<i64: 0, 0>, sizes = array<i64: 2, 8>, strides = array<i64: 1, 1>} : (tensor<8x8xf32>) -> tensor<2x8xf32>
  %4 = graph.mul %3, %0 : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %5 = graph.reduce sum %4 {dims = array<i64: 0, 1>} : (tensor<2x8xf32>) -> tensor<f32>
  %6 = graph.mul %2, %5 : (tensor<8x8xf32>, tensor<f32>) -> tensor<8x8xf32>
  return %6 : tensor<8x8xf32>
}

func.func private @joined.U(%g: tensor<8x8xf32>) -> tensor<8x8xf32> {
  return %g : tensor<8x8xf32>
}

// Of a gather part that only backward has read, nothing is left.
// CHECK-LABEL: pipe.program @late(
// CHECK-SAME: %[[W:[^:]*]]: tensor<8x8xf32>
// CHECK-NOT: @late.G
// CHECK: pipe.invoke @late.F(
// CHECK: pipe.invoke @late.B(%{{.*}}, %[[W]])
// CHECK-NOT: func.func private @late.G
pipe.program @late(%w: tensor<8x8xf32>, %x: tensor<4x8xbf16>) -> (tensor<8x8xf32> {graph.updates = "w"})
    attributes {micro_batches = 1 : i64} {
  %0 = pipe.invoke @late.G(%w) {part = "G", once, split = array<i64: -1>, results = ["value"]}
      : (tensor<8x8xf32>) -> tensor<8x8xbf16>
  %1 = pipe.invoke @late.F(%x) {part = "F", split = array<i64: 0>, results = ["saved"]}
      : (tensor<4x8xbf16>) -> tensor<4x8xbf16>
  %2 = pipe.invoke @late.B(%1, %0) {part = "B", split = array<i64: -1, -1>, results = ["accumulate"]}
      : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<8x8xf32>
  %3 = pipe.invoke @late.U(%w, %2) {part = "U", once, split = array<i64: -1, -1>, results = ["value"]}
      : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  pipe.return %3 : tensor<8x8xf32>
}

func.func private @late.G(%w: tensor<8x8xf32>) -> tensor<8x8xbf16> {
  %0 = graph.cast %w : (tensor<8x8xf32>) -> tensor<8x8xbf16>
  return %0 : tensor<8x8xbf16>
}

func.func private @late.F(%x: tensor<4x8xbf16>) -> tensor<4x8xbf16> {
  %0 = graph.neg %x : (tensor<4x8xbf16>) -> tensor<4x8xbf16>
  return %0 : tensor<4x8xbf16>
}

func.func private @late.B(%s: tensor<4x8xbf16>, %w: tensor<8x8xbf16>) -> tensor<8x8xf32> {
  %0 = graph.linear %s, %w : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
  %1 = graph.contract "bo,bi->oi" %0, %s {result_element = f32} : (tensor<4x8xbf16>, tensor<4x8xbf16>) -> tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}

func.func private @late.U(%w: tensor<8x8xf32>, %g: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = graph.sub %w, %g : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
