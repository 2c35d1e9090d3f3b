// RUN: cleave-opt %s --pass-pipeline='builtin.module(exec-unroll-schedule,func.func(exec-decompose,exec-fold-views,exec-select-kernels),exec-assign-layouts,exec-plan-memory)' | FileCheck %s

// Weight 256 bytes, input 320: fixed. Behind them the sum of gradients and one
// saved value: all five micro-batches use the same places.
// CHECK: module attributes {exec.arena_bytes = 1088 : i64

func.func private @t.F(%w: tensor<16x4xf32>, %x: tensor<4x4xf32>) -> tensor<4x16xf32> {
  %h = graph.linear %x, %w : (tensor<4x4xf32>, tensor<16x4xf32>) -> tensor<4x16xf32>
  return %h : tensor<4x16xf32>
}
func.func private @t.B(%y: tensor<4x16xf32>, %x: tensor<4x4xf32>) -> tensor<16x4xf32> {
  %g = graph.contract "bo,bi->oi" %y, %x : (tensor<4x16xf32>, tensor<4x4xf32>) -> tensor<16x4xf32>
  return %g : tensor<16x4xf32>
}
// The update is written over the weight it replaces.
// CHECK: func.func private @t.U(%arg0: tensor<16x4xf32> {exec.buffer = 0 : i64, exec.dies}
// CHECK: exec.contract {{.*}} {exec.buffers = array<i64: 0>}
func.func private @t.U(%w: tensor<16x4xf32>, %g: tensor<16x4xf32>) -> tensor<16x4xf32> {
  %i = graph.constant dense<1.0> : tensor<4x4xf32>
  %1 = graph.contract "ab,cb->ac" %g, %i : (tensor<16x4xf32>, tensor<4x4xf32>) -> tensor<16x4xf32>
  return %1 : tensor<16x4xf32>
}

// CHECK: exec.program @t(%{{.*}}: tensor<16x4xf32> {exec.offset = 0 : i64, {{.*}}}, %{{.*}}: tensor<20x4xf32> {exec.offset = 256 : i64
// CHECK-SAME: -> (tensor<16x4xf32> {exec.offset = 0 : i64, graph.updates = "w"})
// CHECK-SAME: exec.lower_bound = 512 : i64, exec.peak = 512 : i64
// CHECK: exec.run @t.F({{.*}}) {micro_batch = 0 : i64, offsets = array<i64: 0, 256, [[SAVED:[0-9]+]]>}
// CHECK: exec.run @t.B({{.*}}) {micro_batch = 0 : i64, offsets = array<i64: [[SAVED]], 256, [[SUM:[0-9]+]]>}
// CHECK: exec.run @t.F({{.*}}) {micro_batch = 1 : i64, offsets = array<i64: 0, 320, [[SAVED]]>}
// CHECK: exec.run @t.B.next({{.*}}) {micro_batch = 1 : i64, offsets = array<i64: [[SAVED]], 320, [[SUM]]>}
// CHECK: exec.run @t.F({{.*}}) {micro_batch = 4 : i64, offsets = array<i64: 0, 512, [[SAVED]]>}
// CHECK: exec.run @t.B.next({{.*}}) {micro_batch = 4 : i64, offsets = array<i64: [[SAVED]], 512, [[SUM]]>}
// CHECK: exec.run @t.U({{.*}}) {micro_batch = 0 : i64, offsets = array<i64: 0, [[SUM]], [[SAVED]]>}
pipe.program @t(%w: tensor<16x4xf32> {graph.name = "w", graph.role = "parameter"},
                %x: tensor<20x4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64})
    -> (tensor<16x4xf32> {graph.updates = "w"})
    attributes {micro_batches = 5 : i64, schedule = "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 U"} {
  %s = pipe.invoke @t.F(%w, %x) {part = "F", split = array<i64: -1, 0>, results = ["saved"]} : (tensor<16x4xf32>, tensor<20x4xf32>) -> tensor<4x16xf32>
  %g = pipe.invoke @t.B(%s, %x) {part = "B", split = array<i64: -1, 0>, results = ["accumulate"]} : (tensor<4x16xf32>, tensor<20x4xf32>) -> tensor<16x4xf32>
  %w2 = pipe.invoke @t.U(%w, %g) {part = "U", once, split = array<i64: -1, -1>, results = ["value"]} : (tensor<16x4xf32>, tensor<16x4xf32>) -> tensor<16x4xf32>
  pipe.return %w2 : tensor<16x4xf32>
}

// Each later micro-batch adds onto the sum.
// CHECK: func.func private @t.B.next(
// CHECK: exec.contract %{{.*}}, %arg1 accumulate %arg2
