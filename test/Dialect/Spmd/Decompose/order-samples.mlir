// RUN: cleave-opt %s --split-input-file --spmd-order-samples="mesh=dp=2" --canonicalize | FileCheck %s
// RUN: cleave-opt %s --split-input-file --spmd-order-samples="mesh=tp=2 recipes=megatron" --canonicalize | FileCheck %s --check-prefix=OTHER
// RUN: cleave-opt %s --split-input-file --spmd-order-samples="micro-batches=2" --canonicalize | FileCheck %s --check-prefix=MICRO

// Two batches of 8 samples are a dimension of (8, 2), from the join to the
// slices that take them apart. Dropout has the index of each row.
// CHECK-LABEL: func.func @joined(
// CHECK-SAME: %[[A:[a-z0-9]+]]: tensor<8x4xf32> {{.*}}, %[[B:[a-z0-9]+]]: tensor<8x4xf32> {{.*}}, %[[RNG:[a-z0-9]+]]: tensor<2xi64>
// OTHER-LABEL: func.func @joined(
// OTHER: graph.concat %{{.*}}, %{{.*}} {dim = 0 : i64}
// OTHER-NOT: starts
// MICRO-LABEL: func.func @joined(
// MICRO: graph.concat %{{.*}}, %{{.*}} {dim = 1 : i64}
func.func @joined(
    %a: tensor<8x4xf32> {graph.batch_dim = 0 : i64, graph.role = "input", graph.name = "a"},
    %b: tensor<8x4xf32> {graph.batch_dim = 0 : i64, graph.role = "input", graph.name = "b"},
    %rng: tensor<2xi64>) -> (tensor<8x4xf32>, tensor<f32>) {
  // CHECK-DAG: %[[STARTS:.*]] = graph.constant dense<[0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15]>
  // CHECK-DAG: %[[A1:.*]] = graph.reshape %[[A]] : (tensor<8x4xf32>) -> tensor<8x1x4xf32>
  // CHECK-DAG: %[[B1:.*]] = graph.reshape %[[B]] : (tensor<8x4xf32>) -> tensor<8x1x4xf32>
  // CHECK: %[[J:.*]] = graph.concat %[[A1]], %[[B1]] {dim = 1 : i64} {{.*}} -> tensor<8x2x4xf32>
  // CHECK: %[[ROWS:.*]] = graph.reshape %[[J]] : (tensor<8x2x4xf32>) -> tensor<16x4xf32>
  %j = graph.concat %a, %b {dim = 0 : i64} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
  // CHECK: %[[D:.*]] = graph.dropout %[[ROWS]], %[[RNG]] starts %[[STARTS]] {{{.*}}starts_dim = 0 : i64}
  %d = graph.dropout %j, %rng {id = 0 : i64, probability = 0.5 : f64} : (tensor<16x4xf32>, tensor<2xi64>) -> tensor<16x4xf32>
  // A table with a row for each of them is in their order.
  // CHECK: %[[I:.*]] = graph.iota
  // CHECK: %[[I2:.*]] = graph.transpose %{{.*}} {permutation = array<i64: 1, 0, 2>} : (tensor<2x8x4xf32>) -> tensor<8x2x4xf32>
  // CHECK: %[[ORDERED:.*]] = graph.reshape %[[I2]]
  // CHECK: %[[H:.*]] = graph.mul %[[D]], %[[ORDERED]]
  %i = graph.iota {dim = 0 : i64} : tensor<16x4xf32>
  %h = graph.mul %d, %i : (tensor<16x4xf32>, tensor<16x4xf32>) -> tensor<16x4xf32>
  // CHECK: %[[SLICE:.*]] = graph.slice %{{.*}} {offsets = array<i64: 0, 1, 0>, sizes = array<i64: 8, 1, 4>
  // CHECK: %[[V:.*]] = graph.reshape %[[SLICE]] : (tensor<8x1x4xf32>) -> tensor<8x4xf32>
  %v = graph.slice %h {offsets = array<i64: 8, 0>, sizes = array<i64: 8, 4>, strides = array<i64: 1, 1>} : (tensor<16x4xf32>) -> tensor<8x4xf32>
  // A sum over all of them has any order.
  // CHECK: %[[SUM:.*]] = graph.reduce sum %[[H]]
  %s = graph.reduce sum %h {dims = array<i64: 0, 1>} : (tensor<16x4xf32>) -> tensor<f32>
  // CHECK: return %[[V]], %[[SUM]]
  return %v, %s : tensor<8x4xf32>, tensor<f32>
}

// -----

// The halves of a batch: samples of an argument are exchanged, and sharded in
// the other order. A micro-batch has no such halves.
// CHECK-LABEL: func.func @halves(
// MICRO-LABEL: func.func @halves(
// MICRO-NOT: transpose
func.func @halves(
    %a: tensor<8x4xf32> {graph.batch_dim = 0 : i64, graph.role = "input", graph.name = "a"})
    -> tensor<4x4xf32> {
  // CHECK: %[[T:.*]] = graph.transpose %{{.*}} {permutation = array<i64: 1, 0, 2>, spmd.samples = 0 : i64} : (tensor<2x4x4xf32>) -> tensor<4x2x4xf32>
  // CHECK: graph.slice %[[T]] {offsets = array<i64: 0, 0, 0>, sizes = array<i64: 4, 1, 4>
  // CHECK: graph.slice %[[T]] {offsets = array<i64: 0, 1, 0>, sizes = array<i64: 4, 1, 4>
  %u = graph.slice %a {offsets = array<i64: 0, 0>, sizes = array<i64: 4, 4>, strides = array<i64: 1, 1>} : (tensor<8x4xf32>) -> tensor<4x4xf32>
  %v = graph.slice %a {offsets = array<i64: 4, 0>, sizes = array<i64: 4, 4>, strides = array<i64: 1, 1>} : (tensor<8x4xf32>) -> tensor<4x4xf32>
  %y = graph.mul %u, %v : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %y : tensor<4x4xf32>
}

// -----

// What takes a few samples apart ends them; samples keep the
// order in which most is computed.
// CHECK-LABEL: func.func @in_order(
// CHECK-NOT: transpose
func.func @in_order(
    %a: tensor<8x4xf32> {graph.batch_dim = 0 : i64, graph.role = "input", graph.name = "a"},
    %w: tensor<4x4xf32>) -> (tensor<8x4xf32>, tensor<3x4xf32>) {
  %y = graph.linear %a, %w : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %s = graph.slice %y {offsets = array<i64: 1, 0>, sizes = array<i64: 3, 4>, strides = array<i64: 1, 1>} : (tensor<8x4xf32>) -> tensor<3x4xf32>
  return %y, %s : tensor<8x4xf32>, tensor<3x4xf32>
}
