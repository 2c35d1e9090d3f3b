// RUN: cleave-opt %s --canonicalize | FileCheck %s

// CHECK-LABEL: func @neutral
// CHECK-SAME: (%[[X:.*]]: tensor<4xf32>)
// CHECK-NEXT: %[[B:.*]] = graph.broadcast %[[X]] : (tensor<4xf32>) -> tensor<2x4xf32>
// CHECK-NEXT: return %[[X]], %[[X]], %[[B]]
func.func @neutral(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<2x4xf32>) {
  %one = graph.constant dense<1.0> : tensor<f32>
  %zero = graph.constant dense<0.0> : tensor<4xf32>
  %ones = graph.constant dense<1.0> : tensor<2x1xf32>
  %0 = graph.mul %one, %x : (tensor<f32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = graph.add %0, %zero : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = graph.sub %x, %zero : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = graph.div %2, %one : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %4 = graph.mul %x, %ones : (tensor<4xf32>, tensor<2x1xf32>) -> tensor<2x4xf32>
  return %1, %3, %4 : tensor<4xf32>, tensor<4xf32>, tensor<2x4xf32>
}

// What looks alike and is not: 0 - x, 1 / x, x * 0 (of a NaN, say).
// CHECK-LABEL: func @not_neutral
// CHECK: graph.sub
// CHECK: graph.div
// CHECK: graph.mul
func.func @not_neutral(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %one = graph.constant dense<1.0> : tensor<f32>
  %zero = graph.constant dense<0.0> : tensor<f32>
  %0 = graph.sub %zero, %x : (tensor<f32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = graph.div %one, %x : (tensor<f32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = graph.mul %x, %zero : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  return %0, %1, %2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// CHECK-LABEL: func @negations
// CHECK-SAME: (%[[X:.*]]: tensor<4xf32>, %[[Y:.*]]: tensor<4xf32>)
// CHECK-DAG: %[[A:.*]] = graph.sub %[[X]], %[[Y]]
// CHECK-DAG: %[[B:.*]] = graph.add %[[X]], %[[Y]]
// CHECK: return %[[X]], %[[A]], %[[B]]
func.func @negations(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %0 = graph.neg %x : (tensor<4xf32>) -> tensor<4xf32>
  %1 = graph.neg %0 : (tensor<4xf32>) -> tensor<4xf32>
  %2 = graph.neg %y : (tensor<4xf32>) -> tensor<4xf32>
  %3 = graph.add %2, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %4 = graph.sub %x, %2 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %1, %3, %4 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// A negated comparison is the opposite one.
// CHECK-LABEL: func @nots
// CHECK-SAME: (%[[X:.*]]: tensor<4xf32>, %[[Y:.*]]: tensor<4xf32>, %[[I:.*]]: tensor<4xi64>, %[[J:.*]]: tensor<i64>, %[[M:.*]]: tensor<4xi1>)
// CHECK-NEXT: %[[A:.*]] = graph.compare ne %[[X]], %[[Y]]
// CHECK-NEXT: %[[B:.*]] = graph.compare eq %[[X]], %[[Y]]
// CHECK-NEXT: %[[C:.*]] = graph.compare ge %[[I]], %[[J]]
// CHECK-NEXT: %[[D:.*]] = graph.compare gt %[[I]], %[[J]]
// CHECK-NEXT: %[[E:.*]] = graph.compare le %[[I]], %[[J]]
// CHECK-NEXT: %[[F:.*]] = graph.compare lt %[[I]], %[[J]]
// CHECK-NEXT: return %[[M]], %[[A]], %[[B]], %[[C]], %[[D]], %[[E]], %[[F]]
func.func @nots(%x: tensor<4xf32>, %y: tensor<4xf32>, %i: tensor<4xi64>, %j: tensor<i64>, %m: tensor<4xi1>) -> (tensor<4xi1>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>) {
  %0 = graph.not %m : (tensor<4xi1>) -> tensor<4xi1>
  %1 = graph.not %0 : (tensor<4xi1>) -> tensor<4xi1>
  %2 = graph.compare eq %x, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  %3 = graph.not %2 : (tensor<4xi1>) -> tensor<4xi1>
  %4 = graph.compare ne %x, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  %5 = graph.not %4 : (tensor<4xi1>) -> tensor<4xi1>
  %6 = graph.compare lt %i, %j : (tensor<4xi64>, tensor<i64>) -> tensor<4xi1>
  %7 = graph.not %6 : (tensor<4xi1>) -> tensor<4xi1>
  %8 = graph.compare le %i, %j : (tensor<4xi64>, tensor<i64>) -> tensor<4xi1>
  %9 = graph.not %8 : (tensor<4xi1>) -> tensor<4xi1>
  %10 = graph.compare gt %i, %j : (tensor<4xi64>, tensor<i64>) -> tensor<4xi1>
  %11 = graph.not %10 : (tensor<4xi1>) -> tensor<4xi1>
  %12 = graph.compare ge %i, %j : (tensor<4xi64>, tensor<i64>) -> tensor<4xi1>
  %13 = graph.not %12 : (tensor<4xi1>) -> tensor<4xi1>
  return %1, %3, %5, %7, %9, %11, %13 : tensor<4xi1>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>
}

// Orders of floats have no opposite, because of NaN; a comparison that is read twice stays.
// CHECK-LABEL: func @not_negated
// CHECK: graph.compare lt
// CHECK-NEXT: graph.not
// CHECK-NEXT: graph.compare ge
// CHECK-NEXT: graph.not
// CHECK-NEXT: graph.compare eq
// CHECK-NEXT: graph.not
func.func @not_negated(%x: tensor<4xf32>, %y: tensor<4xf32>, %i: tensor<4xi64>) -> (tensor<4xi1>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>) {
  %0 = graph.compare lt %x, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  %1 = graph.not %0 : (tensor<4xi1>) -> tensor<4xi1>
  %2 = graph.compare ge %x, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  %3 = graph.not %2 : (tensor<4xi1>) -> tensor<4xi1>
  %4 = graph.compare eq %i, %i : (tensor<4xi64>, tensor<4xi64>) -> tensor<4xi1>
  %5 = graph.not %4 : (tensor<4xi1>) -> tensor<4xi1>
  return %1, %3, %4, %5 : tensor<4xi1>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>
}

// CHECK-LABEL: func @powers
// CHECK-SAME: (%[[X:.*]]: tensor<4xf32>)
// CHECK-NEXT: %[[SQUARE:.*]] = graph.mul %[[X]], %[[X]]
// CHECK-NEXT: %[[TWO:.*]] = graph.mul %[[X]], %[[X]]
// CHECK-NEXT: %[[CUBE:.*]] = graph.mul %[[TWO]], %[[X]]
// CHECK-NEXT: return %[[X]], %[[SQUARE]], %[[CUBE]]
func.func @powers(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %one = graph.constant dense<1.0> : tensor<f32>
  %two = graph.constant dense<2.0> : tensor<f32>
  %three = graph.constant dense<3.0> : tensor<f32>
  %0 = graph.pow %x, %one : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %1 = graph.pow %x, %two : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %2 = graph.pow %x, %three : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  return %0, %1, %2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// CHECK-LABEL: func @randomness
// CHECK-SAME: (%[[X:.*]]: tensor<1x1x4x8xf32>, %[[RNG:.*]]: tensor<2xi64>)
// CHECK-NEXT: graph.attention %[[X]], %[[X]], %[[X]] {scale = 1.000000e+00 : f64}
func.func @randomness(%x: tensor<1x1x4x8xf32>, %rng: tensor<2xi64>) -> tensor<1x1x4x8xf32> {
  %0 = graph.dropout %x, %rng {probability = 0.0 : f64, id = 0 : i64} : (tensor<1x1x4x8xf32>, tensor<2xi64>) -> tensor<1x1x4x8xf32>
  %1, %lse = graph.attention %0, %0, %0 rng %rng {scale = 1.0 : f64} : (tensor<1x1x4x8xf32>, tensor<1x1x4x8xf32>, tensor<1x1x4x8xf32>, tensor<2xi64>) -> (tensor<1x1x4x8xf32>, tensor<1x1x4xf32>)
  return %1 : tensor<1x1x4x8xf32>
}

// A cast that loses nothing joins the next; one that rounds stays.
// CHECK-LABEL: func @casts
// CHECK-SAME: (%[[X:.*]]: tensor<4xbf16>, %[[Y:.*]]: tensor<4xf32>, %[[M:.*]]: tensor<4xi1>)
// CHECK-DAG: %[[R:.*]] = graph.cast %[[Y]] : (tensor<4xf32>) -> tensor<4xbf16>
// CHECK-DAG: %[[W:.*]] = graph.cast %[[R]] : (tensor<4xbf16>) -> tensor<4xf32>
// CHECK-DAG: %[[F:.*]] = graph.cast %[[M]] : (tensor<4xi1>) -> tensor<4xf32>
// CHECK: return %[[X]], %[[W]], %[[F]]
func.func @casts(%x: tensor<4xbf16>, %y: tensor<4xf32>, %m: tensor<4xi1>) -> (tensor<4xbf16>, tensor<4xf32>, tensor<4xf32>) {
  %0 = graph.cast %x : (tensor<4xbf16>) -> tensor<4xf32>
  %1 = graph.cast %0 : (tensor<4xf32>) -> tensor<4xbf16>
  %2 = graph.cast %y : (tensor<4xf32>) -> tensor<4xbf16>
  %3 = graph.cast %2 : (tensor<4xbf16>) -> tensor<4xf32>
  %4 = graph.cast %m : (tensor<4xi1>) -> tensor<4xi64>
  %5 = graph.cast %4 : (tensor<4xi64>) -> tensor<4xf32>
  return %1, %3, %5 : tensor<4xbf16>, tensor<4xf32>, tensor<4xf32>
}

// CHECK-LABEL: func @reductions
// CHECK-SAME: (%[[X:.*]]: tensor<4x1xf32>)
// CHECK-NEXT: %[[R:.*]] = graph.reshape %[[X]] : (tensor<4x1xf32>) -> tensor<4xf32>
// CHECK-NEXT: return %[[X]], %[[R]]
func.func @reductions(%x: tensor<4x1xf32>) -> (tensor<4x1xf32>, tensor<4xf32>) {
  %0 = graph.reduce sum %x {dims = array<i64>} : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %1 = graph.reduce max %x {dims = array<i64: 1>} : (tensor<4x1xf32>) -> tensor<4xf32>
  return %0, %1 : tensor<4x1xf32>, tensor<4xf32>
}

// CHECK-LABEL: func @broadcasts
// CHECK-SAME: (%[[X:.*]]: tensor<4x1xf32>, %[[S:.*]]: tensor<1xf32>, %[[Y:.*]]: tensor<2x4x8xf32>)
// CHECK-DAG: %[[A:.*]] = graph.broadcast %[[X]] : (tensor<4x1xf32>) -> tensor<2x4x8xf32>
// CHECK-DAG: %[[R:.*]] = graph.reshape %[[S]] : (tensor<1xf32>) -> tensor<f32>
// CHECK-DAG: %[[B:.*]] = graph.broadcast %[[R]] : (tensor<f32>) -> tensor<6xf32>
// CHECK-DAG: %[[C:.*]] = graph.mul %[[Y]], %[[X]] : (tensor<2x4x8xf32>, tensor<4x1xf32>) -> tensor<2x4x8xf32>
// CHECK: return %[[A]], %[[B]], %[[C]]
func.func @broadcasts(%x: tensor<4x1xf32>, %s: tensor<1xf32>, %y: tensor<2x4x8xf32>) -> (tensor<2x4x8xf32>, tensor<6xf32>, tensor<2x4x8xf32>) {
  %0 = graph.broadcast %x : (tensor<4x1xf32>) -> tensor<4x8xf32>
  %1 = graph.broadcast %0 : (tensor<4x8xf32>) -> tensor<2x4x8xf32>
  %2 = graph.broadcast %s : (tensor<1xf32>) -> tensor<2x3xf32>
  %3 = graph.transpose %2 {permutation = array<i64: 1, 0>} : (tensor<2x3xf32>) -> tensor<3x2xf32>
  %4 = graph.reshape %3 : (tensor<3x2xf32>) -> tensor<6xf32>
  %5 = graph.mul %y, %0 : (tensor<2x4x8xf32>, tensor<4x8xf32>) -> tensor<2x4x8xf32>
  return %1, %4, %5 : tensor<2x4x8xf32>, tensor<6xf32>, tensor<2x4x8xf32>
}

// The broadcast that gives the result its shape stays.
// CHECK-LABEL: func @broadcast_stays
// CHECK: graph.broadcast
// CHECK: graph.add
func.func @broadcast_stays(%x: tensor<1x4xf32>, %y: tensor<4xf32>) -> tensor<2x4xf32> {
  %0 = graph.broadcast %x : (tensor<1x4xf32>) -> tensor<2x4xf32>
  %1 = graph.add %0, %y : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  return %1 : tensor<2x4xf32>
}

// CHECK-LABEL: func @constants
// CHECK-NEXT: %[[C:.*]] = graph.constant dense<3.000000e+00> : tensor<6xf32>
// CHECK-NEXT: return %[[C]]
func.func @constants() -> tensor<6xf32> {
  %0 = graph.constant dense<3.0> : tensor<2x3xf32>
  %1 = graph.transpose %0 {permutation = array<i64: 1, 0>} : (tensor<2x3xf32>) -> tensor<3x2xf32>
  %2 = graph.reshape %1 : (tensor<3x2xf32>) -> tensor<6xf32>
  return %2 : tensor<6xf32>
}

// CHECK-LABEL: func @contractions
// CHECK-SAME: (%[[A:.*]]: tensor<2x3x4xf32>, %[[B:.*]]: tensor<4x5xf32>)
// CHECK-NEXT: %[[C:.*]] = graph.contract "sbh,ho->osb" %[[A]], %[[B]] : (tensor<2x3x4xf32>, tensor<4x5xf32>) -> tensor<5x2x3xf32>
// CHECK-NEXT: return %[[C]]
func.func @contractions(%a: tensor<2x3x4xf32>, %b: tensor<4x5xf32>) -> tensor<5x2x3xf32> {
  %0 = graph.transpose %a {permutation = array<i64: 1, 2, 0>} : (tensor<2x3x4xf32>) -> tensor<3x4x2xf32>
  %1 = graph.transpose %b {permutation = array<i64: 1, 0>} : (tensor<4x5xf32>) -> tensor<5x4xf32>
  %2 = graph.contract "bhs,oh->bso" %0, %1 : (tensor<3x4x2xf32>, tensor<5x4xf32>) -> tensor<3x2x5xf32>
  %3 = graph.transpose %2 {permutation = array<i64: 2, 1, 0>} : (tensor<3x2x5xf32>) -> tensor<5x2x3xf32>
  return %3 : tensor<5x2x3xf32>
}

// CHECK-LABEL: func @unread_rows
// CHECK: %[[S:.*]] = graph.slice %{{.*}} {offsets = array<i64: 0, 1, 0>, sizes = array<i64: 2, 3, 8>, strides = array<i64: 1, 1, 1>}
// CHECK: graph.linear %[[S]], %{{.*}} : (tensor<2x3x8xf32>, tensor<1x8xf32>) -> tensor<2x3x1xf32>
func.func @unread_rows(%x: tensor<2x4x8xf32>, %w: tensor<1x8xf32>) -> tensor<2x3x1xf32> {
  %0 = graph.linear %x, %w : (tensor<2x4x8xf32>, tensor<1x8xf32>) -> tensor<2x4x1xf32>
  %1 = graph.slice %0 {offsets = array<i64: 0, 1, 0>, sizes = array<i64: 2, 3, 1>, strides = array<i64: 1, 1, 2>} : (tensor<2x4x1xf32>) -> tensor<2x3x1xf32>
  return %1 : tensor<2x3x1xf32>
}

// The gradients of the parts of a split: side by side, whatever their order.
// CHECK-LABEL: func @split_gradients
// CHECK-SAME: (%[[Q:.*]]: tensor<2x3xf32>, %[[K:.*]]: tensor<2x3xf32>, %[[V:.*]]: tensor<2x2xf32>)
// CHECK-NEXT: %[[C:.*]] = graph.concat %[[Q]], %[[K]], %[[V]] {dim = 1 : i64} : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x2xf32>) -> tensor<2x8xf32>
// CHECK-NEXT: return %[[C]]
func.func @split_gradients(%q: tensor<2x3xf32>, %k: tensor<2x3xf32>, %v: tensor<2x2xf32>) -> tensor<2x8xf32> {
  %0 = graph.pad %v {value = 0.0 : f64, low = array<i64: 0, 6>, high = array<i64: 0, 0>, interior = array<i64: 0, 0>} : (tensor<2x2xf32>) -> tensor<2x8xf32>
  %1 = graph.pad %k {value = 0.0 : f64, low = array<i64: 0, 3>, high = array<i64: 0, 2>, interior = array<i64: 0, 0>} : (tensor<2x3xf32>) -> tensor<2x8xf32>
  %2 = graph.add %0, %1 : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %3 = graph.pad %q {value = 0.0 : f64, low = array<i64: 0, 0>, high = array<i64: 0, 5>, interior = array<i64: 0, 0>} : (tensor<2x3xf32>) -> tensor<2x8xf32>
  %4 = graph.add %2, %3 : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %4 : tensor<2x8xf32>
}

// Parts that overlap, have gaps, or are padded with other values are added.
// CHECK-LABEL: func @not_split
// CHECK-COUNT-3: graph.add
// CHECK-NOT: graph.concat
func.func @not_split(%x: tensor<4xf32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
  %0 = graph.pad %x {value = 0.0 : f64, low = array<i64: 0>, high = array<i64: 4>, interior = array<i64: 0>} : (tensor<4xf32>) -> tensor<8xf32>
  %1 = graph.pad %x {value = 0.0 : f64, low = array<i64: 3>, high = array<i64: 1>, interior = array<i64: 0>} : (tensor<4xf32>) -> tensor<8xf32>
  %2 = graph.pad %x {value = 0.0 : f64, low = array<i64: 1>, high = array<i64: 0>, interior = array<i64: 1>} : (tensor<4xf32>) -> tensor<8xf32>
  %3 = graph.pad %x {value = 1.0 : f64, low = array<i64: 4>, high = array<i64: 0>, interior = array<i64: 0>} : (tensor<4xf32>) -> tensor<8xf32>
  %4 = graph.add %0, %1 : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %5 = graph.add %0, %2 : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %6 = graph.add %0, %3 : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  return %4, %5, %6 : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}
