// RUN: cleave-opt %s --pipe-schedule --exec-unroll-schedule | FileCheck %s

// The first micro-batch gives the maximum, of floats and of integers; each one
// after it is combined with it, in its memory.

// CHECK-LABEL: exec.program @train
// CHECK: %[[A:.*]]:3 = exec.run @train.F(%{{[^,]*}}, %{{[^,]*}}) {micro_batch = 0
// CHECK: %[[B:.*]]:3 = exec.run @train.F.next(%{{[^,]*}}, %{{[^,]*}}, %[[A]]#0, %[[A]]#1, %[[A]]#2) {micro_batch = 1
// CHECK: %[[C:.*]]:3 = exec.run @train.F.next(%{{[^,]*}}, %{{[^,]*}}, %[[B]]#0, %[[B]]#1, %[[B]]#2) {micro_batch = 2
// CHECK: exec.return %[[C]]#0, %[[C]]#1, %[[C]]#2

// CHECK-LABEL: func.func private @train.F.next(
// CHECK-SAME: -> (tensor<2xf32> {exec.alias = 2 : i64}, tensor<2xi64> {exec.alias = 3 : i64}, tensor<2xf32> {exec.alias = 4 : i64})
// CHECK-DAG: graph.maximum %arg2, %{{.*}} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
// CHECK-DAG: graph.minimum %arg3, %{{.*}} : (tensor<2xi64>, tensor<2xi64>) -> tensor<2xi64>
// CHECK-DAG: graph.add %arg4, %{{.*}} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
// CHECK: return
pipe.program @train(%x: tensor<6x2xf32>, %i: tensor<6x2xi64>) -> (tensor<2xf32>, tensor<2xi64>, tensor<2xf32>)
    attributes {micro_batches = 3 : i64} {
  %r:3 = pipe.invoke @train.F(%x, %i) {part = "F", split = array<i64: 0, 0>, results = ["accumulate:max", "accumulate:min", "accumulate"]}
      : (tensor<6x2xf32>, tensor<6x2xi64>) -> (tensor<2xf32>, tensor<2xi64>, tensor<2xf32>)
  pipe.return %r#0, %r#1, %r#2 : tensor<2xf32>, tensor<2xi64>, tensor<2xf32>
}

func.func private @train.F(%x: tensor<2x2xf32>, %i: tensor<2x2xi64>) -> (tensor<2xf32>, tensor<2xi64>, tensor<2xf32>) {
  %max = graph.reduce max %x {dims = array<i64: 0>} : (tensor<2x2xf32>) -> tensor<2xf32>
  %min = graph.reduce min %i {dims = array<i64: 0>} : (tensor<2x2xi64>) -> tensor<2xi64>
  %sum = graph.reduce sum %x {dims = array<i64: 0>} : (tensor<2x2xf32>) -> tensor<2xf32>
  return %max, %min, %sum : tensor<2xf32>, tensor<2xi64>, tensor<2xf32>
}
