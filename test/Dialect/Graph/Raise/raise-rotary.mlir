// RUN: cleave-opt %s --split-input-file --graph-raise-rotary | FileCheck %s
// RUN: cleave-opt %s --split-input-file --graph-raise-rotary --mlir-print-debuginfo --mlir-print-local-scope | FileCheck %s --check-prefix=LOC

// Halves are rotated; the op has the place and the precision of the sum.
// CHECK-LABEL: func.func @halves(
// CHECK-SAME: %[[X:[^:]*]]: tensor<2x4x6x8xf32>, %[[C:[^:]*]]: tensor<6x8xf32>, %[[S:[^:]*]]: tensor<6x8xf32>)
// CHECK-NEXT: %[[Y:.*]] = graph.rope %[[X]], %[[C]], %[[S]] {graph.precision = "f32"} :
// CHECK-NEXT: return %[[Y]]
// LOC-LABEL: func.func @halves(
// LOC: graph.rope {{.*}} loc("model.py":7:1)
func.func @halves(%x: tensor<2x4x6x8xf32>, %cos: tensor<6x8xf32>, %sin: tensor<6x8xf32>) -> tensor<2x4x6x8xf32> {
  %0 = graph.mul %cos, %x : (tensor<6x8xf32>, tensor<2x4x6x8xf32>) -> tensor<2x4x6x8xf32>
  %1 = graph.slice %x {offsets = array<i64: 0, 0, 0, 0>, sizes = array<i64: 2, 4, 6, 4>, strides = array<i64: 1, 1, 1, 1>} : (tensor<2x4x6x8xf32>) -> tensor<2x4x6x4xf32>
  %2 = graph.slice %x {offsets = array<i64: 0, 0, 0, 4>, sizes = array<i64: 2, 4, 6, 4>, strides = array<i64: 1, 1, 1, 1>} : (tensor<2x4x6x8xf32>) -> tensor<2x4x6x4xf32>
  %3 = graph.neg %2 : (tensor<2x4x6x4xf32>) -> tensor<2x4x6x4xf32>
  %4 = graph.concat %3, %1 {dim = 3 : i64} : (tensor<2x4x6x4xf32>, tensor<2x4x6x4xf32>) -> tensor<2x4x6x8xf32>
  %5 = graph.mul %4, %sin : (tensor<2x4x6x8xf32>, tensor<6x8xf32>) -> tensor<2x4x6x8xf32>
  %6 = graph.add %5, %0 {graph.precision = "f32"} : (tensor<2x4x6x8xf32>, tensor<2x4x6x8xf32>) -> tensor<2x4x6x8xf32> loc("model.py":7:1)
  return %6 : tensor<2x4x6x8xf32>
}

// -----

// Pairs are rotated by tables of half the size, which are doubled once.
// CHECK-LABEL: func.func @pairs(
// CHECK-SAME: %[[X:[^:]*]]: tensor<2x4x6x8xf32>, %[[C:[^:]*]]: tensor<6x4xf32>, %[[S:[^:]*]]: tensor<6x4xf32>)
// CHECK: %[[R:.*]] = graph.reshape %[[C]] : (tensor<6x4xf32>) -> tensor<6x4x1xf32>
// CHECK-NEXT: %[[B:.*]] = graph.broadcast %[[R]] : (tensor<6x4x1xf32>) -> tensor<6x4x2xf32>
// CHECK-NEXT: %[[CC:.*]] = graph.reshape %[[B]] : (tensor<6x4x2xf32>) -> tensor<6x8xf32>
// CHECK: %[[SS:.*]] = graph.reshape %{{.*}} : (tensor<6x4x2xf32>) -> tensor<6x8xf32>
// CHECK-NEXT: %[[Y:.*]] = graph.rope %[[X]], %[[CC]], %[[SS]] {interleaved} :
// CHECK-NEXT: return %[[Y]]
func.func @pairs(%x: tensor<2x4x6x8xf32>, %cos: tensor<6x4xf32>, %sin: tensor<6x4xf32>) -> tensor<2x4x6x8xf32> {
  %p = graph.reshape %x : (tensor<2x4x6x8xf32>) -> tensor<2x4x6x4x2xf32>
  %a = graph.slice %p {offsets = array<i64: 0, 0, 0, 0, 0>, sizes = array<i64: 2, 4, 6, 4, 1>, strides = array<i64: 1, 1, 1, 1, 1>} : (tensor<2x4x6x4x2xf32>) -> tensor<2x4x6x4x1xf32>
  %b = graph.slice %p {offsets = array<i64: 0, 0, 0, 0, 1>, sizes = array<i64: 2, 4, 6, 4, 1>, strides = array<i64: 1, 1, 1, 1, 1>} : (tensor<2x4x6x4x2xf32>) -> tensor<2x4x6x4x1xf32>
  %x1 = graph.reshape %a : (tensor<2x4x6x4x1xf32>) -> tensor<2x4x6x4xf32>
  %x2 = graph.reshape %b : (tensor<2x4x6x4x1xf32>) -> tensor<2x4x6x4xf32>
  %0 = graph.mul %x1, %cos : (tensor<2x4x6x4xf32>, tensor<6x4xf32>) -> tensor<2x4x6x4xf32>
  %1 = graph.mul %sin, %x2 : (tensor<6x4xf32>, tensor<2x4x6x4xf32>) -> tensor<2x4x6x4xf32>
  %2 = graph.sub %0, %1 : (tensor<2x4x6x4xf32>, tensor<2x4x6x4xf32>) -> tensor<2x4x6x4xf32>
  %3 = graph.mul %x1, %sin : (tensor<2x4x6x4xf32>, tensor<6x4xf32>) -> tensor<2x4x6x4xf32>
  %4 = graph.mul %x2, %cos : (tensor<2x4x6x4xf32>, tensor<6x4xf32>) -> tensor<2x4x6x4xf32>
  %5 = graph.add %3, %4 : (tensor<2x4x6x4xf32>, tensor<2x4x6x4xf32>) -> tensor<2x4x6x4xf32>
  %6 = graph.reshape %2 : (tensor<2x4x6x4xf32>) -> tensor<2x4x6x4x1xf32>
  %7 = graph.reshape %5 : (tensor<2x4x6x4xf32>) -> tensor<2x4x6x4x1xf32>
  %8 = graph.concat %6, %7 {dim = 4 : i64} : (tensor<2x4x6x4x1xf32>, tensor<2x4x6x4x1xf32>) -> tensor<2x4x6x4x2xf32>
  %9 = graph.reshape %8 : (tensor<2x4x6x4x2xf32>) -> tensor<2x4x6x8xf32>
  return %9 : tensor<2x4x6x8xf32>
}

// -----

// Tables that are trained have a gradient, which a rotary embedding gives none.
// CHECK-LABEL: func.func @trained(
// CHECK-NOT: graph.rope
// CHECK: graph.add
func.func @trained(%x: tensor<2x4x6x8xf32>, %t: tensor<6x8xf32> {graph.name = "t", graph.role = "parameter"}) -> tensor<2x4x6x8xf32> {
  %cos = graph.cos %t : (tensor<6x8xf32>) -> tensor<6x8xf32>
  %sin = graph.sin %t : (tensor<6x8xf32>) -> tensor<6x8xf32>
  %0 = graph.mul %x, %cos : (tensor<2x4x6x8xf32>, tensor<6x8xf32>) -> tensor<2x4x6x8xf32>
  %1 = graph.slice %x {offsets = array<i64: 0, 0, 0, 0>, sizes = array<i64: 2, 4, 6, 4>, strides = array<i64: 1, 1, 1, 1>} : (tensor<2x4x6x8xf32>) -> tensor<2x4x6x4xf32>
  %2 = graph.slice %x {offsets = array<i64: 0, 0, 0, 4>, sizes = array<i64: 2, 4, 6, 4>, strides = array<i64: 1, 1, 1, 1>} : (tensor<2x4x6x8xf32>) -> tensor<2x4x6x4xf32>
  %3 = graph.neg %2 : (tensor<2x4x6x4xf32>) -> tensor<2x4x6x4xf32>
  %4 = graph.concat %3, %1 {dim = 3 : i64} : (tensor<2x4x6x4xf32>, tensor<2x4x6x4xf32>) -> tensor<2x4x6x8xf32>
  %5 = graph.mul %4, %sin : (tensor<2x4x6x8xf32>, tensor<6x8xf32>) -> tensor<2x4x6x8xf32>
  %6 = graph.add %0, %5 : (tensor<2x4x6x8xf32>, tensor<2x4x6x8xf32>) -> tensor<2x4x6x8xf32>
  return %6 : tensor<2x4x6x8xf32>
}

// -----

// The other half is negated: no rotation.
// CHECK-LABEL: func.func @mirrored(
// CHECK-NOT: graph.rope
// CHECK: graph.add
func.func @mirrored(%x: tensor<2x4x6x8xf32>, %cos: tensor<6x8xf32>, %sin: tensor<6x8xf32>) -> tensor<2x4x6x8xf32> {
  %0 = graph.mul %x, %cos : (tensor<2x4x6x8xf32>, tensor<6x8xf32>) -> tensor<2x4x6x8xf32>
  %1 = graph.slice %x {offsets = array<i64: 0, 0, 0, 0>, sizes = array<i64: 2, 4, 6, 4>, strides = array<i64: 1, 1, 1, 1>} : (tensor<2x4x6x8xf32>) -> tensor<2x4x6x4xf32>
  %2 = graph.slice %x {offsets = array<i64: 0, 0, 0, 4>, sizes = array<i64: 2, 4, 6, 4>, strides = array<i64: 1, 1, 1, 1>} : (tensor<2x4x6x8xf32>) -> tensor<2x4x6x4xf32>
  %3 = graph.neg %1 : (tensor<2x4x6x4xf32>) -> tensor<2x4x6x4xf32>
  %4 = graph.concat %2, %3 {dim = 3 : i64} : (tensor<2x4x6x4xf32>, tensor<2x4x6x4xf32>) -> tensor<2x4x6x8xf32>
  %5 = graph.mul %4, %sin : (tensor<2x4x6x8xf32>, tensor<6x8xf32>) -> tensor<2x4x6x8xf32>
  %6 = graph.add %0, %5 : (tensor<2x4x6x8xf32>, tensor<2x4x6x8xf32>) -> tensor<2x4x6x8xf32>
  return %6 : tensor<2x4x6x8xf32>
}
