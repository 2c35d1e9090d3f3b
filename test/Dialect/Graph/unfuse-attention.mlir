// RUN: cleave-opt %s --split-input-file --verify-diagnostics --graph-unfuse-attention | FileCheck %s

// Scores, a softmax over the visible ones, dropout by the numbers that the op
// draws, and the mean of values.
// CHECK-LABEL: func.func @causal(
// CHECK-SAME: %[[Q:.*]]: tensor<2x4x64x8xf32>, %[[K:[^:]*]]: {{.*}}, %[[V:[^:]*]]: {{.*}}, %[[R:[^:]*]]:
// CHECK: %[[S:.*]] = graph.contract "baqd,bakd->baqk" %[[Q]], %[[K]]
// CHECK: %[[T:.*]] = graph.mul %[[S]],
// CHECK: %[[C:.*]] = graph.compare le
// CHECK: %[[H:.*]] = graph.select %[[C]], %[[T]],
// CHECK: %[[P:.*]] = graph.softmax %[[H]]
// CHECK: %[[D:.*]] = graph.dropout %[[P]], %[[R]] {id = 3 : i64, probability = 1.000000e-01 : f64}
// CHECK: %[[O:.*]] = graph.contract "baqk,bake->baqe" %[[D]], %[[V]]
// CHECK: return %[[O]]
func.func @causal(%q: tensor<2x4x64x8xf32>, %k: tensor<2x4x64x8xf32>, %v: tensor<2x4x64x8xf32>, %r: tensor<2xi64>)
    -> tensor<2x4x64x8xf32> {
  %o, %l = graph.attention %q, %k, %v rng %r {causal, dropout = 0.1 : f64, dropout_id = 3 : i64, scale = 0.5 : f64}
      : (tensor<2x4x64x8xf32>, tensor<2x4x64x8xf32>, tensor<2x4x64x8xf32>, tensor<2xi64>) -> (tensor<2x4x64x8xf32>, tensor<2x4x64xf32>)
  return %o : tensor<2x4x64x8xf32>
}

// Query heads in groups; a row of 6 keys draws as many numbers as one of 64; a
// query that sees no key gives 0.
// CHECK-LABEL: func.func @grouped(
// CHECK: graph.contract "bgmqd,bgkd->bgmqk"
// CHECK: %[[P:.*]] = graph.softmax
// CHECK: %[[Z:.*]] = graph.select %{{.*}}, %[[P]]
// CHECK: %[[W:.*]] = graph.pad %[[Z]] {high = array<i64: 0, 0, 0, 58>
// CHECK: graph.dropout %[[W]]
// CHECK: graph.slice
// CHECK: graph.contract "bgmqk,bgke->bgmqe"
func.func @grouped(%q: tensor<2x4x6x8xf32>, %k: tensor<2x2x6x8xf32>, %v: tensor<2x2x6x8xf32>, %m: tensor<2x1x6x6xi1>, %r: tensor<2xi64>)
    -> tensor<2x4x6x8xf32> {
  %o, %l = graph.attention %q, %k, %v mask %m rng %r {dropout = 0.1 : f64, scale = 0.5 : f64}
      : (tensor<2x4x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x1x6x6xi1>, tensor<2xi64>) -> (tensor<2x4x6x8xf32>, tensor<2x4x6xf32>)
  return %o : tensor<2x4x6x8xf32>
}

// -----

func.func @sum(%q: tensor<2x4x6x8xf32>) -> tensor<2x4x6xf32> {
  // expected-error @below {{is a part of an attention already and stays one op}}
  %o, %l = graph.attention %q, %q, %q {scale = 0.5 : f64}
      : (tensor<2x4x6x8xf32>, tensor<2x4x6x8xf32>, tensor<2x4x6x8xf32>) -> (tensor<2x4x6x8xf32>, tensor<2x4x6xf32>)
  return %l : tensor<2x4x6xf32>
}
