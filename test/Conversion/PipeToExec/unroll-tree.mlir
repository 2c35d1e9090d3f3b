// RUN: cleave-opt %s --pipe-schedule --exec-unroll-schedule | FileCheck %s

// Of four micro-batches the first half is added to the second: 0 and 2, 1 and
// 3, and then both sums. What a part makes is the younger summand, and the
// memory is that of the oldest sum.

// CHECK-LABEL: exec.program @train
// CHECK: %[[A:.*]] = exec.run @train.F(%{{[^,]*}}) {micro_batch = 0
// CHECK: %[[B:.*]] = exec.run @train.F.next(%{{[^,]*}}, %[[A]]) {micro_batch = 2
// CHECK: %[[C:.*]] = exec.run @train.F(%{{[^,]*}}) {micro_batch = 1
// CHECK: %[[D:.*]] = exec.run @train.F.next2(%{{[^,]*}}, %[[C]], %[[B]]) {micro_batch = 3
// CHECK: exec.return %[[D]]

// CHECK-LABEL: func.func private @train.F.next(
// CHECK-SAME: -> (tensor<2xf32> {exec.alias = 1 : i64})
// CHECK: graph.add %arg1, %{{.*}} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>

// CHECK-LABEL: func.func private @train.F.next2(
// CHECK-SAME: %arg1: tensor<2xf32> {exec.dies}, %arg2: tensor<2xf32> {exec.dies}) -> (tensor<2xf32> {exec.alias = 2 : i64})
// CHECK: %[[NEWER:.*]] = graph.add %arg1, %{{.*}} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
// CHECK: %[[SUM:.*]] = graph.add %arg2, %[[NEWER]]
// CHECK: return %[[SUM]]
pipe.program @train(%x: tensor<8x2xf32>) -> (tensor<2xf32>)
    attributes {micro_batches = 4 : i64, tree_sums} {
  %sum = pipe.invoke @train.F(%x) {part = "F", split = array<i64: 0>, results = ["accumulate"]}
      : (tensor<8x2xf32>) -> tensor<2xf32>
  pipe.return %sum : tensor<2xf32>
}

func.func private @train.F(%x: tensor<2x2xf32>) -> tensor<2xf32> {
  %sum = graph.reduce sum %x {dims = array<i64: 0>} : (tensor<2x2xf32>) -> tensor<2xf32>
  return %sum : tensor<2xf32>
}
