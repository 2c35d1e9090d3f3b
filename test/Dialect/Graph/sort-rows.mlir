// RUN: cleave-opt %s --graph-sort-rows --split-input-file | FileCheck %s

// Tokens enter through the rows that repeat them; gate, activation and down are
// of sorted rows, also where one of them says groups in another shape; outputs
// leave.
// CHECK-LABEL: func.func @layers
func.func @layers(%x: tensor<3x8xf32>, %w: tensor<4x8x6xf32>, %d: tensor<4x8x6xf32>, %b: tensor<4x6xf32>, %g: tensor<3x2xi64>) -> tensor<3x8xf32> {
  // CHECK: %[[G:.*]] = graph.reshape %arg4 : (tensor<3x2xi64>) -> tensor<6xi64>
  // CHECK: %[[ORDER:.*]], %[[INVERSE:.*]], %[[OFFSETS:.*]] = graph.sort_rows %[[G]] {size = 4 : i64}
  // CHECK-NOT: graph.broadcast {{.*}} -> tensor<3x2x8xf32>
  // CHECK: %[[ROWS:.*]] = graph.broadcast %{{.*}} : (tensor<3x1xi64>) -> tensor<3x2xi64>
  // CHECK: %[[FLAT:.*]] = graph.reshape %[[ROWS]]
  // CHECK: %[[TOKENS:.*]] = graph.gather %[[FLAT]], %[[ORDER]] {dim = 0 : i64}
  // CHECK: %[[R:.*]] = graph.gather %{{.*}}, %[[TOKENS]] {dim = 0 : i64} : (tensor<3x8xf32>, tensor<6xi64>) -> tensor<6x8xf32>
  // CHECK: %[[H:.*]] = graph.grouped_contract %[[R]], %arg1, %[[OFFSETS]]
  // CHECK: graph.gather %arg3, %{{.*}} {dim = 0 : i64} : (tensor<4x6xf32>, tensor<1x6xi64>) -> tensor<1x6x6xf32>
  // CHECK: graph.add {{.*}} -> tensor<1x6x6xf32>
  // CHECK: graph.silu {{.*}} -> tensor<1x6x6xf32>
  // CHECK-NOT: graph.gather
  // CHECK: %[[Y:.*]] = graph.grouped_contract %{{.*}}, %arg2, %[[OFFSETS]] {transpose}
  // CHECK: %[[OUT:.*]] = graph.gather %[[Y]], %[[INVERSE]] {dim = 0 : i64} : (tensor<6x8xf32>, tensor<6xi64>) -> tensor<6x8xf32>
  // CHECK: graph.reduce sum
  %t = graph.reshape %x : (tensor<3x8xf32>) -> tensor<3x1x8xf32>
  %r = graph.broadcast %t : (tensor<3x1x8xf32>) -> tensor<3x2x8xf32>
  %h = graph.grouped_linear %r, %w, %g : (tensor<3x2x8xf32>, tensor<4x8x6xf32>, tensor<3x2xi64>) -> tensor<3x2x6xf32>
  %bias = graph.gather %b, %g {dim = 0 : i64} : (tensor<4x6xf32>, tensor<3x2xi64>) -> tensor<3x2x6xf32>
  %s = graph.add %h, %bias : (tensor<3x2x6xf32>, tensor<3x2x6xf32>) -> tensor<3x2x6xf32>
  %a = graph.silu %s : (tensor<3x2x6xf32>) -> tensor<3x2x6xf32>
  %flat = graph.reshape %a : (tensor<3x2x6xf32>) -> tensor<6x6xf32>
  %ids = graph.reshape %g : (tensor<3x2xi64>) -> tensor<6xi64>
  %y = graph.grouped_linear %flat, %d, %ids {transpose} : (tensor<6x6xf32>, tensor<4x8x6xf32>, tensor<6xi64>) -> tensor<6x8xf32>
  %o = graph.reshape %y : (tensor<6x8xf32>) -> tensor<3x2x8xf32>
  %sum = graph.reduce sum %o {dims = array<i64: 1>} : (tensor<3x2x8xf32>) -> tensor<3x8xf32>
  return %sum : tensor<3x8xf32>
}

// -----

// Sums over rows are in their own order: outputs leave and enter.
// CHECK-LABEL: func.func @apart
func.func @apart(%x: tensor<6x8xf32>, %w: tensor<4x8x8xf32>, %g: tensor<6xi64>) -> tensor<6x8xf32> {
  // CHECK: %[[ORDER:.*]], %[[INVERSE:.*]], %[[OFFSETS:.*]] = graph.sort_rows %arg2 {size = 4 : i64}
  // CHECK: %[[X:.*]] = graph.gather %arg0, %[[ORDER]] {dim = 0 : i64}
  // CHECK: %[[H:.*]] = graph.grouped_contract %[[X]], %arg1, %[[OFFSETS]]
  %h = graph.grouped_linear %x, %w, %g : (tensor<6x8xf32>, tensor<4x8x8xf32>, tensor<6xi64>) -> tensor<6x8xf32>
  // CHECK: %[[BACK:.*]] = graph.gather %[[H]], %[[INVERSE]] {dim = 0 : i64}
  // CHECK: %[[S:.*]] = graph.cumulative_sum %[[BACK]] {dim = 0 : i64}
  %s = graph.cumulative_sum %h {dim = 0 : i64} : (tensor<6x8xf32>) -> tensor<6x8xf32>
  // CHECK: %[[T:.*]] = graph.gather %[[S]], %[[ORDER]] {dim = 0 : i64}
  // CHECK: %[[Y:.*]] = graph.grouped_contract %[[T]], %arg1, %[[OFFSETS]]
  // CHECK: %[[OUT:.*]] = graph.gather %[[Y]], %[[INVERSE]] {dim = 0 : i64}
  // CHECK: return %[[OUT]]
  %y = graph.grouped_linear %s, %w, %g : (tensor<6x8xf32>, tensor<4x8x8xf32>, tensor<6xi64>) -> tensor<6x8xf32>
  return %y : tensor<6x8xf32>
}

// -----

// A shard holds two of eight groups; the gradient of its weight has their rows,
// which are sorted once.
// CHECK-LABEL: func.func @shard
func.func @shard(%x: tensor<6x8xf32>, %dy: tensor<6x5xf32>, %w: tensor<2x8x5xf32>, %g: tensor<6xi64>, %at: tensor<1xi64>) -> (tensor<6x5xf32>, tensor<2x8x5xf32>) {
  // CHECK: %[[ORDER:.*]], %{{.*}}, %[[OFFSETS:.*]] = graph.sort_rows %arg3 origin %arg4 {global_size = 8 : i64, size = 2 : i64}
  // CHECK-NOT: graph.sort_rows
  // CHECK: graph.grouped_contract_weight_grad %{{.*}}, %{{.*}}, %[[OFFSETS]] {result_element = f64}
  // CHECK-SAME: tensor<2x8x5xf64>
  %y = graph.grouped_linear %x, %w, %g origin %at {global_size = 8 : i64} : (tensor<6x8xf32>, tensor<2x8x5xf32>, tensor<6xi64>, tensor<1xi64>) -> tensor<6x5xf32>
  %d = graph.grouped_linear_weight_grad %x, %dy, %g origin %at {global_size = 8 : i64, result_element = f64, size = 2 : i64} : (tensor<6x8xf32>, tensor<6x5xf32>, tensor<6xi64>, tensor<1xi64>) -> tensor<2x8x5xf64>
  %n = graph.cast %d : (tensor<2x8x5xf64>) -> tensor<2x8x5xf32>
  return %y, %n : tensor<6x5xf32>, tensor<2x8x5xf32>
}
