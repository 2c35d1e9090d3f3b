// RUN: cleave-opt %s --graph-derive-evaluate | FileCheck %s
// RUN: not cleave-opt %s --graph-derive-evaluate=entry=draws 2>&1 | FileCheck %s --check-prefix=DRAWS

// CHECK-LABEL: func.func @loss(
// CHECK: graph.dropout
// CHECK-LABEL: func.func @evaluate(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<1x2x4x8xf32> {graph.name = "x", graph.role = "input"})
// CHECK-SAME: -> (tensor<f32> {graph.name = "loss"})
// CHECK-NEXT: %[[O:.*]], %{{.*}} = graph.attention %[[X]], %[[X]], %[[X]] {causal, dropout_id = 2 : i64, scale = 3.500000e-01 : f64} :
// CHECK-NEXT: graph.reduce sum %[[O]]
func.func @loss(%x: tensor<1x2x4x8xf32> {graph.name = "x", graph.role = "input"},
                %rng: tensor<2xi64> {graph.name = "rng", graph.role = "rng"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %0 = graph.dropout %x, %rng {probability = 0.1 : f64, id = 1 : i64} : (tensor<1x2x4x8xf32>, tensor<2xi64>) -> tensor<1x2x4x8xf32>
  %1, %lse = graph.attention %0, %0, %0 rng %rng {scale = 0.35 : f64, causal, dropout = 0.1 : f64, dropout_id = 2 : i64} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<2xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %2 = graph.reduce sum %1 {dims = array<i64: 0, 1, 2, 3>} : (tensor<1x2x4x8xf32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// The entry can be left out; the others stay.

// RUN: cleave-opt %s --graph-derive-evaluate=drop-entry | FileCheck %s --check-prefix=DROP
// DROP-NOT: func.func @loss(
// DROP: func.func @evaluate(
// DROP: func.func @mean(

// A mean over counted targets returns their number, beside the mean. So does a
// sum of means that divide by the same.

// RUN: cleave-opt %s --graph-derive-evaluate="entry=mean target=of_mean" | FileCheck %s --check-prefix=MEAN
// MEAN-LABEL: func.func @of_mean(
// MEAN-SAME: -> (tensor<f32> {graph.name = "loss"}, tensor<f32> {graph.name = "loss_weight"})
// MEAN: %[[N:.*]] = graph.cast %{{.*}} : (tensor<i64>) -> tensor<f32>
// MEAN: %[[A:.*]] = graph.div %{{.*}}, %[[N]]
// MEAN: %[[B:.*]] = graph.div %{{.*}}, %[[N]]
// MEAN: %[[LOSS:.*]] = graph.add
// MEAN: return %[[LOSS]], %[[N]] : tensor<f32>, tensor<f32>
func.func @mean(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                %t: tensor<4xi64> {graph.name = "t", graph.role = "input"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %ignored = graph.constant dense<-100> : tensor<i64>
  %half = graph.constant dense<0.5> : tensor<f32>
  %valid = graph.compare ne %t, %ignored : (tensor<4xi64>, tensor<i64>) -> tensor<4xi1>
  %ones = graph.cast %valid : (tensor<4xi1>) -> tensor<4xi64>
  %count = graph.reduce sum %ones {dims = array<i64: 0>} : (tensor<4xi64>) -> tensor<i64>
  %n = graph.cast %count : (tensor<i64>) -> tensor<f32>
  %sum = graph.reduce sum %w {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  %max = graph.reduce max %w {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  %0 = graph.div %sum, %n : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %1 = graph.mul %half, %0 : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %2 = graph.div %max, %n : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %3 = graph.add %1, %2 : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %3 : tensor<f32>
}

// What is no mean of one kind returns nothing more: a term that divides by
// something else, a number that no sum gives, one that a parameter decides.

// RUN: cleave-opt %s --graph-derive-evaluate="entry=mixed target=of_mixed" | FileCheck %s --check-prefix=MIXED
// MIXED-LABEL: func.func @of_mixed(
// MIXED-SAME: -> (tensor<f32> {graph.name = "loss"}) {
func.func @mixed(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                 %t: tensor<4xf32> {graph.name = "t", graph.role = "input"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %sum = graph.reduce sum %w {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  %n = graph.reduce sum %t {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  %0 = graph.div %sum, %n : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %1 = graph.add %0, %sum : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// RUN: cleave-opt %s --graph-derive-evaluate="entry=scaled target=of_scaled" | FileCheck %s --check-prefix=SCALED
// SCALED-LABEL: func.func @of_scaled(
// SCALED-SAME: -> (tensor<f32> {graph.name = "loss"}) {
func.func @scaled(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
                  %t: tensor<f32> {graph.name = "t", graph.role = "input"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %sum = graph.reduce sum %w {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  %0 = graph.div %sum, %sum : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %1 = graph.div %0, %t : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// The generator's state as a number would be missed.

// DRAWS: error: 'graph.cast' op reads the random generator's state and cannot do without it in evaluation
func.func @draws(%rng: tensor<2xi64> {graph.name = "rng", graph.role = "rng"}) -> tensor<f32> {
  %0 = graph.cast %rng : (tensor<2xi64>) -> tensor<2xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 0>} : (tensor<2xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// Random numbers are their mean.

// RUN: cleave-opt %s --graph-derive-evaluate="entry=noise target=of_noise" | FileCheck %s --check-prefix=NOISE
// NOISE-LABEL: func.func @of_noise(
// NOISE-SAME: %[[X:[a-z0-9]+]]: tensor<4xf32> {graph.name = "x", graph.role = "input"})
// NOISE-NEXT: %[[U:.*]] = graph.constant dense<5.000000e-01> : tensor<4xf32>
// NOISE-NEXT: graph.mul %[[X]], %[[U]]
func.func @noise(%x: tensor<4xf32> {graph.name = "x", graph.role = "input"},
                 %rng: tensor<2xi64> {graph.name = "rng", graph.role = "rng"})
    -> (tensor<f32> {graph.name = "loss"}) {
  %0 = graph.uniform %rng {id = 1 : i64} : (tensor<2xi64>) -> tensor<4xf32>
  %1 = graph.mul %x, %0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = graph.reduce sum %1 {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// An evaluation has no metrics.

// RUN: cleave-opt %s --graph-derive-evaluate="entry=several target=of_several" | FileCheck %s --check-prefix=SEVERAL
// SEVERAL-LABEL: func.func @of_several(
// SEVERAL-SAME: -> (tensor<f32> {graph.name = "loss"}) {
// SEVERAL: return %{{[^,]*}} : tensor<f32>
func.func @several(%x: tensor<4xf32> {graph.name = "x", graph.role = "input"})
    -> (tensor<f32> {graph.name = "loss"}, tensor<f32> {graph.name = "metric/largest"}) {
  %0 = graph.reduce sum %x {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  %1 = graph.reduce max %x {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  return %0, %1 : tensor<f32>, tensor<f32>
}
