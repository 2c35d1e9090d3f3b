// RUN: cleave-opt %s --split-input-file --graph-raise-attention | FileCheck %s
// RUN: cleave-opt %s --split-input-file --graph-raise-attention --mlir-print-debuginfo --mlir-print-local-scope | FileCheck %s --check-prefix=LOC

// A causal mask by positions; the op has the place and the precision of the
// product with values, and the scales of queries and scores are one.
// CHECK-LABEL: func.func @causal(
// CHECK-SAME: %[[Q:[^:]*]]: tensor<2x4x8x4xf32>, %[[K:[^:]*]]: tensor<2x4x8x4xf32>, %[[V:[^:]*]]: tensor<2x4x8x4xf32>)
// CHECK-NEXT: %[[Y:[^,]*]], %{{.*}} = graph.attention %[[Q]], %[[K]], %[[V]] {causal, graph.precision = "f32", scale = 1.000000e+00 : f64} :
// CHECK-NEXT: return %[[Y]]
// LOC-LABEL: func.func @causal(
// LOC: graph.attention {{.*}} loc("model.py":7:1)
func.func @causal(%q: tensor<2x4x8x4xf32>, %k: tensor<2x4x8x4xf32>, %v: tensor<2x4x8x4xf32>) -> tensor<2x4x8x4xf32> {
  %two = graph.constant dense<2.0> : tensor<f32>
  %half = graph.constant dense<0.5> : tensor<f32>
  %inf = graph.constant dense<0xFF800000> : tensor<f32>
  %row = graph.iota {dim = 0 : i64} : tensor<8x1xi64>
  %column = graph.iota {dim = 1 : i64} : tensor<1x8xi64>
  %seen = graph.compare le %column, %row : (tensor<1x8xi64>, tensor<8x1xi64>) -> tensor<8x8xi1>
  %0 = graph.mul %two, %q : (tensor<f32>, tensor<2x4x8x4xf32>) -> tensor<2x4x8x4xf32>
  %1 = graph.contract "abqd,abkd->abqk" %0, %k : (tensor<2x4x8x4xf32>, tensor<2x4x8x4xf32>) -> tensor<2x4x8x8xf32>
  %2 = graph.mul %1, %half : (tensor<2x4x8x8xf32>, tensor<f32>) -> tensor<2x4x8x8xf32>
  %3 = graph.select %seen, %2, %inf : (tensor<8x8xi1>, tensor<2x4x8x8xf32>, tensor<f32>) -> tensor<2x4x8x8xf32>
  %4 = graph.softmax %3 : (tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
  %5 = graph.contract "abqk,abke->abqe" %4, %v {graph.precision = "f32"} : (tensor<2x4x8x8xf32>, tensor<2x4x8x4xf32>) -> tensor<2x4x8x4xf32> loc("model.py":7:1)
  return %5 : tensor<2x4x8x4xf32>
}

// -----

// Dropout, repeated heads of keys and values, and a window of a finite bias;
// a number is the one that was written before a cast rounded it.
// CHECK-LABEL: func.func @grouped(
// CHECK-SAME: %[[Q:[^:]*]]: tensor<2x4x3x4xf32>, %[[K:[^:]*]]: tensor<2x2x3x4xf32>, %[[V:[^:]*]]: tensor<2x2x3x4xf32>, %[[R:[^:]*]]: tensor<2xi64>)
// CHECK-NEXT: graph.attention %[[Q]], %[[K]], %[[V]] rng %[[R]] {causal, dropout = 1.000000e-01 : f64, dropout_id = 3 : i64, scale = 0.35355339059327379 : f64, window = 2 : i64} :
// CHECK-NOT: tensor<f64>
func.func @grouped(%q: tensor<2x4x3x4xf32>, %k: tensor<2x2x3x4xf32>, %v: tensor<2x2x3x4xf32>, %rng: tensor<2xi64>) -> tensor<2x4x3x4xf32> {
  %wide = graph.constant dense<0.35355339059327379> : tensor<f64>
  %scale = graph.cast %wide : (tensor<f64>) -> tensor<f32>
  %bias = graph.constant dense<[[0.0, -3.0e38, -3.0e38], [0.0, 0.0, -3.0e38], [-3.0e38, 0.0, 0.0]]> : tensor<3x3xf32>
  %k0 = graph.reshape %k : (tensor<2x2x3x4xf32>) -> tensor<2x2x1x3x4xf32>
  %k1 = graph.broadcast %k0 : (tensor<2x2x1x3x4xf32>) -> tensor<2x2x2x3x4xf32>
  %k2 = graph.reshape %k1 : (tensor<2x2x2x3x4xf32>) -> tensor<2x4x3x4xf32>
  %v0 = graph.reshape %v : (tensor<2x2x3x4xf32>) -> tensor<2x2x1x3x4xf32>
  %v1 = graph.broadcast %v0 : (tensor<2x2x1x3x4xf32>) -> tensor<2x2x2x3x4xf32>
  %v2 = graph.reshape %v1 : (tensor<2x2x2x3x4xf32>) -> tensor<2x4x3x4xf32>
  %0 = graph.contract "abqd,abkd->abqk" %q, %k2 : (tensor<2x4x3x4xf32>, tensor<2x4x3x4xf32>) -> tensor<2x4x3x3xf32>
  %1 = graph.mul %0, %scale : (tensor<2x4x3x3xf32>, tensor<f32>) -> tensor<2x4x3x3xf32>
  %2 = graph.add %1, %bias : (tensor<2x4x3x3xf32>, tensor<3x3xf32>) -> tensor<2x4x3x3xf32>
  %3 = graph.softmax %2 : (tensor<2x4x3x3xf32>) -> tensor<2x4x3x3xf32>
  %4 = graph.dropout %3, %rng {probability = 0.1 : f64, id = 3 : i64} : (tensor<2x4x3x3xf32>, tensor<2xi64>) -> tensor<2x4x3x3xf32>
  %5 = graph.contract "abqk,abke->abqe" %4, %v2 : (tensor<2x4x3x3xf32>, tensor<2x4x3x4xf32>) -> tensor<2x4x3x4xf32>
  return %5 : tensor<2x4x3x4xf32>
}

// -----

// Chunks of positions are segments that are constant, whether they are causal
// by themselves or by another mask; of two kinds of segments one stays a mask.
// CHECK-LABEL: func.func @chunks(
// CHECK: %[[C:.*]] = graph.constant dense<[0, 0, 0, 1, 1, 1, 2, 2]> : tensor<8xi64>
// CHECK: %[[S:.*]] = graph.broadcast %[[C]] : (tensor<8xi64>) -> tensor<2x8xi64>
// CHECK: graph.attention {{.*}} segments %[[S]] {causal, scale = 5.000000e-01 : f64} :
// CHECK: graph.attention {{.*}} segments %{{.*}} {causal, scale = 5.000000e-01 : f64} :
// CHECK: graph.attention {{.*}} segments %{{.*}} {scale = 5.000000e-01 : f64} :
// CHECK: graph.attention {{.*}} mask %{{.*}} segments %arg1 {causal, scale = 5.000000e-01 : f64} :
func.func @chunks(%q: tensor<2x4x8x4xf32>, %d: tensor<2x8xi64>) -> (tensor<2x4x8x4xf32>, tensor<2x4x8x4xf32>, tensor<2x4x8x4xf32>, tensor<2x4x8x4xf32>) {
  %three = graph.constant dense<3> : tensor<i64>
  %row = graph.iota {dim = 2 : i64} : tensor<1x1x8x1xi64>
  %column = graph.iota {dim = 3 : i64} : tensor<1x1x1x8xi64>
  %rows = graph.div %row, %three : (tensor<1x1x8x1xi64>, tensor<i64>) -> tensor<1x1x8x1xi64>
  %columns = graph.div %column, %three : (tensor<1x1x1x8xi64>, tensor<i64>) -> tensor<1x1x1x8xi64>
  %same = graph.compare eq %rows, %columns : (tensor<1x1x8x1xi64>, tensor<1x1x1x8xi64>) -> tensor<1x1x8x8xi1>
  %seen = graph.compare le %column, %row : (tensor<1x1x1x8xi64>, tensor<1x1x8x1xi64>) -> tensor<1x1x8x8xi1>
  %both = graph.and %seen, %same : (tensor<1x1x8x8xi1>, tensor<1x1x8x8xi1>) -> tensor<1x1x8x8xi1>
  %o0, %lse0 = graph.attention %q, %q, %q mask %both {scale = 0.5 : f64} : (tensor<2x4x8x4xf32>, tensor<2x4x8x4xf32>, tensor<2x4x8x4xf32>, tensor<1x1x8x8xi1>) -> (tensor<2x4x8x4xf32>, tensor<2x4x8xf32>)
  %inside = graph.constant dense<[[true, false, false, false, false, false, false, false], [true, true, false, false, false, false, false, false], [false, false, true, false, false, false, false, false], [false, false, true, true, false, false, false, false], [false, false, true, true, true, false, false, false], [false, false, false, false, false, true, false, false], [false, false, false, false, false, true, true, false], [false, false, false, false, false, true, true, true]]> : tensor<8x8xi1>
  %o1, %lse1 = graph.attention %q, %q, %q mask %inside {scale = 0.5 : f64} : (tensor<2x4x8x4xf32>, tensor<2x4x8x4xf32>, tensor<2x4x8x4xf32>, tensor<8x8xi1>) -> (tensor<2x4x8x4xf32>, tensor<2x4x8xf32>)
  %o2, %lse2 = graph.attention %q, %q, %q mask %same {scale = 0.5 : f64} : (tensor<2x4x8x4xf32>, tensor<2x4x8x4xf32>, tensor<2x4x8x4xf32>, tensor<1x1x8x8xi1>) -> (tensor<2x4x8x4xf32>, tensor<2x4x8xf32>)
  %o3, %lse3 = graph.attention %q, %q, %q mask %both segments %d {scale = 0.5 : f64} : (tensor<2x4x8x4xf32>, tensor<2x4x8x4xf32>, tensor<2x4x8x4xf32>, tensor<1x1x8x8xi1>, tensor<2x8xi64>) -> (tensor<2x4x8x4xf32>, tensor<2x4x8xf32>)
  return %o0, %o1, %o2, %o3 : tensor<2x4x8x4xf32>, tensor<2x4x8x4xf32>, tensor<2x4x8x4xf32>, tensor<2x4x8x4xf32>
}

// -----

// An op that is attention already: what its mask says becomes attributes, and
// what depends on an input stays the mask.
// CHECK-LABEL: func.func @masks(
// CHECK-SAME: %[[Q:[^:]*]]: tensor<2x4x6x4xf32>, %[[P:[^:]*]]: tensor<2x6xi1>, %[[D:[^:]*]]: tensor<2x6xi64>)
// CHECK: %[[M:.*]] = graph.reshape %[[P]] : (tensor<2x6xi1>) -> tensor<2x1x1x6xi1>
// CHECK: graph.attention %[[Q]], %[[Q]], %[[Q]] mask %[[M]] segments %[[D]] {causal, scale = 5.000000e-01 : f64} :
// CHECK-NOT: graph.and
func.func @masks(%q: tensor<2x4x6x4xf32>, %p: tensor<2x6xi1>, %d: tensor<2x6xi64>) -> tensor<2x4x6x4xf32> {
  %row = graph.iota {dim = 2 : i64} : tensor<1x1x6x1xi64>
  %column = graph.iota {dim = 3 : i64} : tensor<1x1x1x6xi64>
  %late = graph.compare gt %column, %row : (tensor<1x1x1x6xi64>, tensor<1x1x6x1xi64>) -> tensor<1x1x6x6xi1>
  %seen = graph.not %late : (tensor<1x1x6x6xi1>) -> tensor<1x1x6x6xi1>
  %pad = graph.reshape %p : (tensor<2x6xi1>) -> tensor<2x1x1x6xi1>
  %dq = graph.reshape %d : (tensor<2x6xi64>) -> tensor<2x1x6x1xi64>
  %dk = graph.reshape %d : (tensor<2x6xi64>) -> tensor<2x1x1x6xi64>
  %same = graph.compare eq %dq, %dk : (tensor<2x1x6x1xi64>, tensor<2x1x1x6xi64>) -> tensor<2x1x6x6xi1>
  %0 = graph.and %seen, %pad : (tensor<1x1x6x6xi1>, tensor<2x1x1x6xi1>) -> tensor<2x1x6x6xi1>
  %1 = graph.and %0, %same : (tensor<2x1x6x6xi1>, tensor<2x1x6x6xi1>) -> tensor<2x1x6x6xi1>
  %o, %lse = graph.attention %q, %q, %q mask %1 {scale = 0.5 : f64} : (tensor<2x4x6x4xf32>, tensor<2x4x6x4xf32>, tensor<2x4x6x4xf32>, tensor<2x1x6x6xi1>) -> (tensor<2x4x6x4xf32>, tensor<2x4x6xf32>)
  return %o : tensor<2x4x6x4xf32>
}

// -----

// A buffer whose first elements the module holds, but which a step updates, is
// no constant; nor is a row without keys one where a finite number hides them.
// CHECK-LABEL: func.func @state(
// CHECK: graph.attention %{{.*}} mask
// CHECK-LABEL: func.func @rows(
// CHECK-NOT: graph.attention
// CHECK: graph.softmax
func.func @state(%q: tensor<1x1x2x2xf32>, %m: tensor<2x2xi1> {graph.name = "m", graph.role = "buffer", graph.value = dense<[[true, false], [true, true]]> : tensor<2x2xi1>}) -> (tensor<1x1x2x2xf32>, tensor<2x2xi1> {graph.updates = "m"}) {
  %o, %lse = graph.attention %q, %q, %q mask %m {scale = 0.5 : f64} : (tensor<1x1x2x2xf32>, tensor<1x1x2x2xf32>, tensor<1x1x2x2xf32>, tensor<2x2xi1>) -> (tensor<1x1x2x2xf32>, tensor<1x1x2xf32>)
  %n = graph.not %m : (tensor<2x2xi1>) -> tensor<2x2xi1>
  return %o, %n : tensor<1x1x2x2xf32>, tensor<2x2xi1>
}
func.func @rows(%q: tensor<1x1x2x2xf32>) -> tensor<1x1x2x2xf32> {
  %seen = graph.constant dense<[[false, false], [true, true]]> : tensor<2x2xi1>
  %low = graph.constant dense<-1.0e30> : tensor<f32>
  %0 = graph.contract "abqd,abkd->abqk" %q, %q : (tensor<1x1x2x2xf32>, tensor<1x1x2x2xf32>) -> tensor<1x1x2x2xf32>
  %1 = graph.select %seen, %0, %low : (tensor<2x2xi1>, tensor<1x1x2x2xf32>, tensor<f32>) -> tensor<1x1x2x2xf32>
  %2 = graph.softmax %1 : (tensor<1x1x2x2xf32>) -> tensor<1x1x2x2xf32>
  %3 = graph.contract "abqk,abke->abqe" %2, %q : (tensor<1x1x2x2xf32>, tensor<1x1x2x2xf32>) -> tensor<1x1x2x2xf32>
  return %3 : tensor<1x1x2x2xf32>
}
