// RUN: cleave-opt %s --spmd-merge-matmuls | FileCheck %s

// Copies of weights of two heights; their biases; what is kept of forward.
// CHECK-LABEL: func.func @forward(
// CHECK-SAME: %[[X:.*]]: tensor<8x4xbf16>
func.func @forward(
    %x: tensor<8x4xbf16>,
    %wq: tensor<4x4xf32> {graph.role = "parameter"}, %bq: tensor<4xf32> {graph.role = "parameter"},
    %wk: tensor<2x4xf32> {graph.role = "parameter"}, %bk: tensor<2xf32> {graph.role = "parameter"})
    -> (tensor<8x4xbf16>, tensor<8x2xbf16>) {
  %0 = graph.cast %wq : (tensor<4x4xf32>) -> tensor<4x4xbf16>
  %1 = graph.cast %bq : (tensor<4xf32>) -> tensor<4xbf16>
  %2 = graph.cast %wk : (tensor<2x4xf32>) -> tensor<2x4xbf16>
  %3 = graph.cast %bk : (tensor<2xf32>) -> tensor<2xbf16>
  // CHECK: %[[W:.*]] = graph.concat %[[WQ:.*]], %[[WK:.*]] {dim = 0 : i64} : (tensor<4x4xbf16>, tensor<2x4xbf16>) -> tensor<6x4xbf16>
  // CHECK: %[[B:.*]] = graph.concat {{.*}} -> tensor<6xbf16>
  // CHECK: %[[Y:.*]] = graph.linear %[[X]], %[[W]] bias %[[B]]
  // CHECK: %[[Q:.*]] = graph.slice %[[Y]] {offsets = array<i64: 0, 0>, sizes = array<i64: 8, 4>
  // CHECK: %[[K:.*]] = graph.slice %[[Y]] {offsets = array<i64: 0, 4>, sizes = array<i64: 8, 2>
  // CHECK: return %[[Q]], %[[K]]
  %q = graph.linear %x, %0 bias %1 : (tensor<8x4xbf16>, tensor<4x4xbf16>, tensor<4xbf16>) -> tensor<8x4xbf16>
  %k = graph.linear %x, %2 bias %3 : (tensor<8x4xbf16>, tensor<2x4xbf16>, tensor<2xbf16>) -> tensor<8x2xbf16>
  return %q, %k : tensor<8x4xbf16>, tensor<8x2xbf16>
}

// Where weights have heads, these are concatenated.
// CHECK-LABEL: func.func @heads(
func.func @heads(
    %x: tensor<2x8x4xbf16>,
    %wq: tensor<4x3x4xf32> {graph.role = "parameter"},
    %wk: tensor<2x3x4xf32> {graph.role = "parameter"})
    -> (tensor<2x8x4x3xbf16>, tensor<2x8x2x3xbf16>) {
  %0 = graph.cast %wq : (tensor<4x3x4xf32>) -> tensor<4x3x4xbf16>
  %1 = graph.cast %wk : (tensor<2x3x4xf32>) -> tensor<2x3x4xbf16>
  // CHECK: %[[W:.*]] = graph.concat {{.*}} -> tensor<6x3x4xbf16>
  // CHECK: %[[Y:.*]] = graph.contract "abi,hdi->abhd" %{{.*}}, %[[W]] : {{.*}} -> tensor<2x8x6x3xbf16>
  // CHECK: graph.slice %[[Y]] {offsets = array<i64: 0, 0, 0, 0>, sizes = array<i64: 2, 8, 4, 3>
  // CHECK: graph.slice %[[Y]] {offsets = array<i64: 0, 0, 4, 0>, sizes = array<i64: 2, 8, 2, 3>
  %q = graph.contract "abi,hdi->abhd" %x, %0 : (tensor<2x8x4xbf16>, tensor<4x3x4xbf16>) -> tensor<2x8x4x3xbf16>
  %k = graph.contract "abi,hdi->abhd" %x, %1 : (tensor<2x8x4xbf16>, tensor<2x3x4xbf16>) -> tensor<2x8x2x3xbf16>
  return %q, %k : tensor<2x8x4x3xbf16>, tensor<2x8x2x3xbf16>
}

// The gradients of all of them, of which the last to be computed comes after
// the first is read. What else is added stays.
spmd.mesh @mesh <["mb" = 2]> sequential ["mb"]
// CHECK-LABEL: func.func @backward(
// CHECK-SAME: %[[X:[a-z0-9]*]]: tensor<8x4xbf16>, %[[R:[a-z0-9]*]]: tensor<8x4xbf16>, %[[DQ:[a-z0-9]*]]: tensor<8x4xbf16>, %[[D:[a-z0-9]*]]: tensor<8x2xbf16>
func.func @backward(
    %x: tensor<8x4xbf16>, %r: tensor<8x4xbf16>, %dq: tensor<8x4xbf16>, %d: tensor<8x2xbf16>,
    %wq: tensor<4x4xf32> {graph.role = "parameter"}, %bq: tensor<4xf32> {graph.role = "parameter"},
    %wk: tensor<2x4xf32> {graph.role = "parameter"}, %bk: tensor<2xf32> {graph.role = "parameter"})
    -> (tensor<8x4xbf16>, tensor<8x2xbf16>, tensor<8x4xbf16>, tensor<4x4xf32>, tensor<2x4xf32>, tensor<4xf32>, tensor<2xf32>) {
  %0 = graph.cast %wq : (tensor<4x4xf32>) -> tensor<4x4xbf16>
  %1 = graph.cast %bq : (tensor<4xf32>) -> tensor<4xbf16>
  %2 = graph.cast %wk : (tensor<2x4xf32>) -> tensor<2x4xbf16>
  %3 = graph.cast %bk : (tensor<2xf32>) -> tensor<2xbf16>
  // CHECK: %[[W:.*]] = graph.concat {{.*}} -> tensor<6x4xbf16>
  %q = graph.linear %x, %0 bias %1 : (tensor<8x4xbf16>, tensor<4x4xbf16>, tensor<4xbf16>) -> tensor<8x4xbf16>
  %k = graph.linear %x, %2 bias %3 : (tensor<8x4xbf16>, tensor<2x4xbf16>, tensor<2xbf16>) -> tensor<8x2xbf16>
  %4 = graph.contract "ao,oi->ai" %dq, %0 : (tensor<8x4xbf16>, tensor<4x4xbf16>) -> tensor<8x4xbf16>
  %5 = graph.contract "ao,ai->oi" %dq, %x {result_element = f32} : (tensor<8x4xbf16>, tensor<8x4xbf16>) -> tensor<4x4xf32>
  %6 = spmd.all_reduce sum %5 over @mesh {"mb"} : tensor<4x4xf32>
  %7 = graph.gradient %6 of "wq" : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %8 = graph.cast %dq : (tensor<8x4xbf16>) -> tensor<8x4xf32>
  %9 = graph.reduce sum %8 {dims = array<i64: 0>} : (tensor<8x4xf32>) -> tensor<4xf32>
  %10 = spmd.all_reduce sum %9 over @mesh {"mb"} : tensor<4xf32>
  // CHECK: %[[DK:.*]] = graph.neg %[[D]]
  // CHECK: %[[DY:.*]] = graph.concat %[[DQ]], %[[DK]] {dim = 1 : i64} : {{.*}} -> tensor<8x6xbf16>
  // CHECK: %[[DX:.*]] = graph.contract "ao,oi->ai" %[[DY]], %[[W]]
  // CHECK: %[[SUM:.*]] = graph.add %[[R]], %[[DX]]
  // CHECK: %[[DW:.*]] = graph.contract "ao,ai->oi" %[[DY]], %[[X]] {result_element = f32} : {{.*}} -> tensor<6x4xf32>
  // CHECK: %[[ALL:.*]] = spmd.all_reduce sum %[[DW]] over @mesh {"mb"} : tensor<6x4xf32>
  // CHECK: %[[WQ:.*]] = graph.slice %[[ALL]] {offsets = array<i64: 0, 0>, sizes = array<i64: 4, 4>
  // CHECK: %[[GK:.*]] = graph.slice %[[ALL]] {offsets = array<i64: 4, 0>, sizes = array<i64: 2, 4>
  // CHECK: %[[GQ:.*]] = graph.gradient %[[WQ]] of "wq"
  // CHECK: %[[WIDE:.*]] = graph.cast %[[DY]] : (tensor<8x6xbf16>) -> tensor<8x6xf32>
  // CHECK: %[[DB:.*]] = graph.reduce sum %[[WIDE]] {dims = array<i64: 0>} : (tensor<8x6xf32>) -> tensor<6xf32>
  // CHECK: %[[ALLB:.*]] = spmd.all_reduce sum %[[DB]] over @mesh {"mb"} : tensor<6xf32>
  // CHECK: %[[BQ:.*]] = graph.slice %[[ALLB]] {offsets = array<i64: 0>, sizes = array<i64: 4>
  // CHECK: %[[BK:.*]] = graph.slice %[[ALLB]] {offsets = array<i64: 4>, sizes = array<i64: 2>
  // CHECK: return %{{.*}}, %{{.*}}, %[[SUM]], %[[GQ]], %[[GK]], %[[BQ]], %[[BK]]
  %dk = graph.neg %d : (tensor<8x2xbf16>) -> tensor<8x2xbf16>
  %11 = graph.contract "ao,oi->ai" %dk, %2 : (tensor<8x2xbf16>, tensor<2x4xbf16>) -> tensor<8x4xbf16>
  %12 = graph.add %4, %r : (tensor<8x4xbf16>, tensor<8x4xbf16>) -> tensor<8x4xbf16>
  %13 = graph.add %12, %11 : (tensor<8x4xbf16>, tensor<8x4xbf16>) -> tensor<8x4xbf16>
  %14 = graph.contract "ao,ai->oi" %dk, %x {result_element = f32} : (tensor<8x2xbf16>, tensor<8x4xbf16>) -> tensor<2x4xf32>
  %15 = spmd.all_reduce sum %14 over @mesh {"mb"} : tensor<2x4xf32>
  %16 = graph.cast %dk : (tensor<8x2xbf16>) -> tensor<8x2xf32>
  %17 = graph.reduce sum %16 {dims = array<i64: 0>} : (tensor<8x2xf32>) -> tensor<2xf32>
  %18 = spmd.all_reduce sum %17 over @mesh {"mb"} : tensor<2xf32>
  return %q, %k, %13, %7, %15, %10, %18 : tensor<8x4xbf16>, tensor<8x2xbf16>, tensor<8x4xbf16>, tensor<4x4xf32>, tensor<2x4xf32>, tensor<4xf32>, tensor<2xf32>
}

// Not weights that are no copies; not another value; not with a product between
// them; not one weight twice; not where one has a bias.
// CHECK-LABEL: func.func @apart(
// CHECK-NOT: graph.concat
func.func @apart(
    %x: tensor<8x4xbf16>, %other: tensor<8x4xbf16>, %f: tensor<8x4xf32>,
    %w0: tensor<4x4xf32> {graph.role = "parameter"}, %w1: tensor<4x4xf32> {graph.role = "parameter"},
    %b: tensor<4xf32> {graph.role = "parameter"}, %i: tensor<4x4xf32> {graph.role = "input"})
    -> (tensor<8x4xbf16>, tensor<8x4xbf16>, tensor<8x4xbf16>, tensor<8x4xbf16>, tensor<8x4xbf16>, tensor<8x4xf32>, tensor<8x4xf32>) {
  %0 = graph.cast %w0 : (tensor<4x4xf32>) -> tensor<4x4xbf16>
  %1 = graph.cast %w1 : (tensor<4x4xf32>) -> tensor<4x4xbf16>
  %2 = graph.cast %i : (tensor<4x4xf32>) -> tensor<4x4xbf16>
  %3 = graph.cast %b : (tensor<4xf32>) -> tensor<4xbf16>
  %4 = graph.linear %x, %0 : (tensor<8x4xbf16>, tensor<4x4xbf16>) -> tensor<8x4xbf16>
  %5 = graph.linear %x, %0 : (tensor<8x4xbf16>, tensor<4x4xbf16>) -> tensor<8x4xbf16>
  %6 = graph.linear %x, %2 : (tensor<8x4xbf16>, tensor<4x4xbf16>) -> tensor<8x4xbf16>
  %7 = graph.linear %x, %1 bias %3 : (tensor<8x4xbf16>, tensor<4x4xbf16>, tensor<4xbf16>) -> tensor<8x4xbf16>
  %8 = graph.linear %other, %1 : (tensor<8x4xbf16>, tensor<4x4xbf16>) -> tensor<8x4xbf16>
  %9 = graph.linear %f, %w0 : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %10 = graph.linear %f, %w1 : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  return %4, %5, %6, %7, %8, %9, %10 : tensor<8x4xbf16>, tensor<8x4xbf16>, tensor<8x4xbf16>, tensor<8x4xbf16>, tensor<8x4xbf16>, tensor<8x4xf32>, tensor<8x4xf32>
}

// Two copies of one parameter are one weight.
// CHECK-LABEL: func.func @twice(
// CHECK-NOT: graph.concat
func.func @twice(%x: tensor<8x4xbf16>, %w: tensor<4x4xf32> {graph.role = "parameter"}) -> (tensor<8x4xbf16>, tensor<8x4xbf16>) {
  %0 = graph.cast %w : (tensor<4x4xf32>) -> tensor<4x4xbf16>
  %1 = graph.cast %w : (tensor<4x4xf32>) -> tensor<4x4xbf16>
  %2 = graph.linear %x, %0 : (tensor<8x4xbf16>, tensor<4x4xbf16>) -> tensor<8x4xbf16>
  %3 = graph.linear %x, %1 : (tensor<8x4xbf16>, tensor<4x4xbf16>) -> tensor<8x4xbf16>
  return %2, %3 : tensor<8x4xbf16>, tensor<8x4xbf16>
}

// A copy that is made behind the first product is made before it; what is not of
// the products keeps its place, as the seed of backward does.
// CHECK-LABEL: func.func @order(
// CHECK: graph.cast %{{.*}} : (tensor<2x4xf32>)
// CHECK: graph.concat
// CHECK: graph.linear
// CHECK: graph.exp
// CHECK: graph.seed
func.func @order(%x: tensor<8x4xbf16>, %s: tensor<f32>, %w: tensor<4x4xf32> {graph.role = "parameter"},
                 %v: tensor<2x4xf32> {graph.role = "parameter"}) -> (tensor<8x4xbf16>, tensor<8x2xbf16>, tensor<f32>) {
  %0 = graph.cast %w : (tensor<4x4xf32>) -> tensor<4x4xbf16>
  %1 = graph.linear %x, %0 : (tensor<8x4xbf16>, tensor<4x4xbf16>) -> tensor<8x4xbf16>
  %2 = graph.exp %1 : (tensor<8x4xbf16>) -> tensor<8x4xbf16>
  %3 = graph.cast %v : (tensor<2x4xf32>) -> tensor<2x4xbf16>
  %4 = graph.linear %x, %3 : (tensor<8x4xbf16>, tensor<2x4xbf16>) -> tensor<8x2xbf16>
  %5 = graph.seed %s : (tensor<f32>) -> tensor<f32>
  return %2, %4, %5 : tensor<8x4xbf16>, tensor<8x2xbf16>, tensor<f32>
}

// Shards of a device are concatenated: no op on global tensors.
// CHECK-LABEL: func.func @shards(
// CHECK: graph.concat {{.*}} {dim = 0 : i64, spmd.global_types = [tensor<8x4xbf16>], spmd.of_device, spmd.shardings = [#spmd.sharding<@sharded, [{"tp"}, {}]>]}
// CHECK-COUNT-2: graph.slice {{.*}} spmd.of_device
spmd.mesh @sharded <["tp" = 2]>
func.func @shards(%x: tensor<8x4xbf16>, %w: tensor<2x4xf32> {graph.role = "parameter"},
                  %v: tensor<2x4xf32> {graph.role = "parameter"}) -> (tensor<8x2xbf16>, tensor<8x2xbf16>) {
  %0 = graph.cast %w {spmd.global_types = [tensor<4x4xbf16>], spmd.shardings = [#spmd.sharding<@sharded, [{"tp"}, {}]>]} : (tensor<2x4xf32>) -> tensor<2x4xbf16>
  %1 = graph.cast %v {spmd.global_types = [tensor<4x4xbf16>], spmd.shardings = [#spmd.sharding<@sharded, [{"tp"}, {}]>]} : (tensor<2x4xf32>) -> tensor<2x4xbf16>
  %2 = graph.linear %x, %0 {spmd.global_types = [tensor<8x4xbf16>], spmd.shardings = [#spmd.sharding<@sharded, [{}, {"tp"}]>]} : (tensor<8x4xbf16>, tensor<2x4xbf16>) -> tensor<8x2xbf16>
  %3 = graph.linear %x, %1 {spmd.global_types = [tensor<8x4xbf16>], spmd.shardings = [#spmd.sharding<@sharded, [{}, {"tp"}]>]} : (tensor<8x4xbf16>, tensor<2x4xbf16>) -> tensor<8x2xbf16>
  return %2, %3 : tensor<8x2xbf16>, tensor<8x2xbf16>
}
