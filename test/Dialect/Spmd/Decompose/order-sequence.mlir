// RUN: cleave-opt %s --split-input-file --spmd-order-sequence="mesh=cp=2 recipes=ring" --verify-diagnostics | FileCheck %s
// RUN: cleave-opt %s --split-input-file --spmd-order-sequence="mesh=cp=2 recipes=context" | FileCheck %s --check-prefix=OTHER
// OTHER-NOT: starts

// Devices have the chunks 0 and 3, and 1 and 2. The order is another one from
// the rows that ids look up and from the positions on, and that of the result.
// CHECK-LABEL: func.func @causal(
// CHECK-SAME: %[[TABLE:[a-z0-9]+]]: tensor<9x4xf32> {{.*}}, %[[IDS:[a-z0-9]+]]: tensor<2x8xi64> {{.*}}, %[[RNG:[a-z0-9]+]]: tensor<2xi64>
func.func @causal(
    %table: tensor<9x4xf32> {graph.name = "table", graph.role = "parameter"},
    %ids: tensor<2x8xi64> {graph.name = "ids", graph.role = "input"},
    %rng: tensor<2xi64>) -> (tensor<2x8x4xf32>, tensor<2x1xf32>) {
  // CHECK-DAG: %[[PLACES:.*]] = graph.constant dense<[0, 1, 6, 7, 2, 3, 4, 5]>
  // CHECK-DAG: %[[BACK:.*]] = graph.constant dense<[0, 1, 4, 5, 6, 7, 2, 3]>
  // CHECK-DAG: %[[STARTS:.*]] = graph.constant dense<[0, 6, 2, 4]>
  // CHECK-DAG: %[[TURNED:.*]] = graph.gather %[[IDS]], %[[PLACES]] {dim = 1 : i64}
  // CHECK: %[[ROWS:.*]] = graph.gather %[[TABLE]], %[[TURNED]] {dim = 0 : i64}
  %rows = graph.gather %table, %ids {dim = 0 : i64} : (tensor<9x4xf32>, tensor<2x8xi64>) -> tensor<2x8x4xf32>
  // CHECK: %[[IOTA:.*]] = graph.iota {dim = 0 : i64} : tensor<8x4xf32>
  // CHECK: %[[POSITIONS:.*]] = graph.gather %[[IOTA]], %[[PLACES]] {dim = 0 : i64}
  %positions = graph.iota {dim = 0 : i64} : tensor<8x4xf32>
  // CHECK: %[[X:.*]] = graph.add %[[ROWS]], %[[POSITIONS]]
  %x = graph.add %rows, %positions : (tensor<2x8x4xf32>, tensor<8x4xf32>) -> tensor<2x8x4xf32>
  // CHECK: %[[D:.*]] = graph.dropout %[[X]], %[[RNG]] starts %[[STARTS]] {id = 0 : i64, probability = 5.000000e-01 : f64, starts_dim = 1 : i64}
  %d = graph.dropout %x, %rng {id = 0 : i64, probability = 0.5 : f64} : (tensor<2x8x4xf32>, tensor<2xi64>) -> tensor<2x8x4xf32>
  %q = graph.reshape %d : (tensor<2x8x4xf32>) -> tensor<2x1x8x4xf32>
  // CHECK: %[[O:.*]], %{{.*}} = graph.attention {{.*}} query_starts %[[STARTS]] key_starts %[[STARTS]] {causal
  %o, %lse = graph.attention %q, %q, %q {scale = 1.0 : f64, causal}
      : (tensor<2x1x8x4xf32>, tensor<2x1x8x4xf32>, tensor<2x1x8x4xf32>) -> (tensor<2x1x8x4xf32>, tensor<2x1x8xf32>)
  // What adds up all places does not care for their order.
  // CHECK: %[[SUM:.*]] = graph.reduce sum
  %sum = graph.reduce sum %lse {dims = array<i64: 2>} : (tensor<2x1x8xf32>) -> tensor<2x1xf32>
  // CHECK: %[[Y:.*]] = graph.reshape %[[O]]
  // CHECK: %[[RESULT:.*]] = graph.gather %[[Y]], %[[BACK]] {dim = 1 : i64}
  %y = graph.reshape %o : (tensor<2x1x8x4xf32>) -> tensor<2x8x4xf32>
  // CHECK: return %[[RESULT]], %[[SUM]]
  return %y, %sum : tensor<2x8x4xf32>, tensor<2x1xf32>
}

// -----

// Running sums go from place to place: they are made in order.
// CHECK-LABEL: func.func @running(
func.func @running(%x: tensor<1x1x8x4xf32>) -> tensor<1x1xf32> {
  // CHECK: %[[K:.*]] = graph.gather %{{.*}} {dim = 2 : i64}
  // CHECK: %[[O:.*]], %{{.*}} = graph.attention %[[K]], %[[K]], %[[K]] query_starts
  %o, %lse = graph.attention %x, %x, %x {scale = 1.0 : f64, causal}
      : (tensor<1x1x8x4xf32>, tensor<1x1x8x4xf32>, tensor<1x1x8x4xf32>) -> (tensor<1x1x8x4xf32>, tensor<1x1x8xf32>)
  // CHECK: %[[B:.*]] = graph.gather %[[O]], %{{.*}} {dim = 2 : i64}
  // CHECK: graph.cumulative_sum %[[B]]
  %c = graph.cumulative_sum %o {dim = 2 : i64} : (tensor<1x1x8x4xf32>) -> tensor<1x1x8x4xf32>
  %s = graph.reduce sum %c {dims = array<i64: 2, 3>} : (tensor<1x1x8x4xf32>) -> tensor<1x1xf32>
  return %s : tensor<1x1xf32>
}

// -----

// A gradient is published as its parameter lies; what is updated is, too.
// CHECK-LABEL: func.func @published(
func.func @published(%p: tensor<1x1x8x4xf32> {graph.name = "p", graph.role = "parameter"})
    -> (tensor<1x1x8x4xf32> {graph.updates = "p"}) {
  %o, %lse = graph.attention %p, %p, %p {scale = 1.0 : f64, causal}
      : (tensor<1x1x8x4xf32>, tensor<1x1x8x4xf32>, tensor<1x1x8x4xf32>) -> (tensor<1x1x8x4xf32>, tensor<1x1x8xf32>)
  // CHECK: %[[O:.*]], %{{.*}} = graph.attention
  // CHECK: %[[B:.*]] = graph.gather %[[O]], %[[BACK:.*]] {dim = 2 : i64}
  // CHECK: %[[G:.*]] = graph.gradient %[[B]] of "p"
  %g = graph.gradient %o of "p" : (tensor<1x1x8x4xf32>) -> tensor<1x1x8x4xf32>
  // CHECK: %[[N:.*]] = graph.sub %{{.*}}, %[[G]]
  %n = graph.sub %p, %g : (tensor<1x1x8x4xf32>, tensor<1x1x8x4xf32>) -> tensor<1x1x8x4xf32>
  // CHECK: return %[[N]]
  return %n : tensor<1x1x8x4xf32>
}

// -----

// All do the same without causality.
// CHECK-LABEL: func.func @everywhere(
// CHECK-NOT: starts
func.func @everywhere(%x: tensor<1x1x8x4xf32>) -> tensor<1x1x8x4xf32> {
  %o, %lse = graph.attention %x, %x, %x {scale = 1.0 : f64}
      : (tensor<1x1x8x4xf32>, tensor<1x1x8x4xf32>, tensor<1x1x8x4xf32>) -> (tensor<1x1x8x4xf32>, tensor<1x1x8xf32>)
  return %o : tensor<1x1x8x4xf32>
}

// -----

// CHECK-LABEL: func.func @odd(
// CHECK-NOT: starts
// expected-remark @+1 {{sequence of length 6 is not divisible by the 4 chunks of zig-zag order: later positions of the ring compute more than earlier ones}}
func.func @odd(%x: tensor<1x1x6x4xf32>) -> tensor<1x1x6x4xf32> {
  %o, %lse = graph.attention %x, %x, %x {scale = 1.0 : f64, causal}
      : (tensor<1x1x6x4xf32>, tensor<1x1x6x4xf32>, tensor<1x1x6x4xf32>) -> (tensor<1x1x6x4xf32>, tensor<1x1x6xf32>)
  return %o : tensor<1x1x6x4xf32>
}

// -----

// Nothing has no order.
// CHECK-LABEL: func.func @empty(
// CHECK-NOT: starts
func.func @empty(%x: tensor<1x1x0x4xf32>) -> tensor<1x1x0x4xf32> {
  %o, %lse = graph.attention %x, %x, %x {scale = 1.0 : f64, causal}
      : (tensor<1x1x0x4xf32>, tensor<1x1x0x4xf32>, tensor<1x1x0x4xf32>) -> (tensor<1x1x0x4xf32>, tensor<1x1x0xf32>)
  return %o : tensor<1x1x0x4xf32>
}

// -----

// An attention that knows its place cannot compute in another order; it is
// left, and so is what it reads.
// CHECK-LABEL: func.func @placed(
// CHECK-NOT: starts
// expected-remark @+1 {{sequence of length 8 is not put in zig-zag order, in which its attention cannot compute}}
func.func @placed(%x: tensor<1x1x8x4xf32>, %origin: tensor<4xi64>) -> tensor<1x1x8x4xf32> {
  %o, %lse = graph.attention %x, %x, %x origin %origin {scale = 1.0 : f64, causal, global_shape = array<i64: 2, 1, 8, 8>}
      : (tensor<1x1x8x4xf32>, tensor<1x1x8x4xf32>, tensor<1x1x8x4xf32>, tensor<4xi64>) -> (tensor<1x1x8x4xf32>, tensor<1x1x8xf32>)
  return %o : tensor<1x1x8x4xf32>
}

// -----

// Rows are added to places, and read from them, in any order, also where each
// position has several: these are not put in their own.
// CHECK-LABEL: func.func @places(
func.func @places(%x: tensor<1x1x8x4xf32>) -> tensor<1x4xf32> {
  // CHECK: %[[O:.*]], %{{.*}} = graph.attention
  %o, %lse = graph.attention %x, %x, %x {scale = 1.0 : f64, causal}
      : (tensor<1x1x8x4xf32>, tensor<1x1x8x4xf32>, tensor<1x1x8x4xf32>) -> (tensor<1x1x8x4xf32>, tensor<1x1x8xf32>)
  // CHECK: %[[Y:.*]] = graph.reshape %[[O]]
  %y = graph.reshape %o : (tensor<1x1x8x4xf32>) -> tensor<1x8x4xf32>
  // CHECK: %{{.*}}, %[[I:.*]] = graph.top_k %[[Y]]
  %v, %i = graph.top_k %y {k = 2 : i64} : (tensor<1x8x4xf32>) -> (tensor<1x8x2xf32>, tensor<1x8x2xi64>)
  // CHECK: %[[B:.*]] = graph.broadcast
  %r = graph.reshape %y : (tensor<1x8x4xf32>) -> tensor<1x8x1x4xf32>
  %b = graph.broadcast %r : (tensor<1x8x1x4xf32>) -> tensor<1x8x2x4xf32>
  // CHECK: %[[ROWS:.*]] = graph.reshape %[[B]] : (tensor<1x8x2x4xf32>) -> tensor<1x16x4xf32>
  // CHECK: %[[P:.*]] = graph.reshape %[[I]] : (tensor<1x8x2xi64>) -> tensor<1x16xi64>
  // CHECK: %[[S:.*]] = graph.scatter_add %[[ROWS]], %[[P]]
  %rows = graph.reshape %b : (tensor<1x8x2x4xf32>) -> tensor<1x16x4xf32>
  %p = graph.reshape %i : (tensor<1x8x2xi64>) -> tensor<1x16xi64>
  %s = graph.scatter_add %rows, %p {batch = 1 : i64, dim = 1 : i64, size = 4 : i64} : (tensor<1x16x4xf32>, tensor<1x16xi64>) -> tensor<1x4x4xf32>
  // CHECK: %[[G:.*]] = graph.gather %[[S]], %{{.*}} {batch = 1
  // CHECK-NEXT: %[[T:.*]] = graph.reshape %[[G]]
  // CHECK-NEXT: graph.mul %[[T]], %[[B]]
  %g = graph.gather %s, %p {batch = 1 : i64, dim = 1 : i64} : (tensor<1x4x4xf32>, tensor<1x16xi64>) -> tensor<1x16x4xf32>
  %t = graph.reshape %g : (tensor<1x16x4xf32>) -> tensor<1x8x2x4xf32>
  %m = graph.mul %t, %b : (tensor<1x8x2x4xf32>, tensor<1x8x2x4xf32>) -> tensor<1x8x2x4xf32>
  %l = graph.reduce sum %m {dims = array<i64: 1, 2>} : (tensor<1x8x2x4xf32>) -> tensor<1x4xf32>
  return %l : tensor<1x4xf32>
}

// -----

// Places of tokens are counted in the order of the chunks: in each of them, and
// from the sums of those before it. Floats are summed in their own order.
// CHECK-LABEL: func.func @counted(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<2x1x8x4xf32>, %[[N:[a-z0-9]+]]: tensor<2x8x3xi64>, %[[F:[a-z0-9]+]]: tensor<2x8xf32>
// CHECK-DAG: %[[PLACES:.*]] = graph.constant dense<[0, 1, 6, 7, 2, 3, 4, 5]>
// CHECK-DAG: %[[BACK:.*]] = graph.constant dense<[0, 1, 4, 5, 6, 7, 2, 3]>
// CHECK-DAG: %[[CHUNKS:.*]] = graph.constant dense<[0, 3, 1, 2]> : tensor<4xi64>
// CHECK-DAG: %[[ORDER:.*]] = graph.constant dense<[0, 2, 3, 1]> : tensor<4xi64>
// CHECK: %[[ROWS:.*]] = graph.reshape %{{.*}} : (tensor<2x8x3xi64>) -> tensor<2x4x2x3xi64>
// CHECK: %[[SUMS:.*]] = graph.reduce sum %[[ROWS]] {dims = array<i64: 2>}
// CHECK: %[[TURNED:.*]] = graph.gather %[[SUMS]], %[[ORDER]] {dim = 1 : i64}
// CHECK: %[[UPTO:.*]] = graph.cumulative_sum %[[TURNED]] {dim = 1 : i64}
// CHECK: %[[BEFORE:.*]] = graph.sub %[[UPTO]], %[[TURNED]]
// CHECK: graph.gather %[[BEFORE]], %[[CHUNKS]] {dim = 1 : i64}
// CHECK: graph.cumulative_sum %[[ROWS]] {dim = 2 : i64}
// CHECK: graph.cumulative_sum {{.*}} : (tensor<2x8xf32>) -> tensor<2x8xf32>
func.func @counted(%x: tensor<2x1x8x4xf32>, %n: tensor<2x8x3xi64>, %f: tensor<2x8xf32>)
    -> (tensor<2x1x8x4xf32>, tensor<2x8xf32>) {
  %o, %lse = graph.attention %x, %x, %x {scale = 1.0 : f64, causal}
      : (tensor<2x1x8x4xf32>, tensor<2x1x8x4xf32>, tensor<2x1x8x4xf32>) -> (tensor<2x1x8x4xf32>, tensor<2x1x8xf32>)
  %places = graph.cumulative_sum %n {dim = 1 : i64} : (tensor<2x8x3xi64>) -> tensor<2x8x3xi64>
  %own = graph.mul %places, %n : (tensor<2x8x3xi64>, tensor<2x8x3xi64>) -> tensor<2x8x3xi64>
  %sums = graph.reduce sum %own {dims = array<i64: 2>} : (tensor<2x8x3xi64>) -> tensor<2x8xi64>
  %w = graph.cast %sums : (tensor<2x8xi64>) -> tensor<2x8xf32>
  %all = graph.cumulative_sum %f {dim = 1 : i64} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %both = graph.add %w, %all : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %row = graph.reshape %both : (tensor<2x8xf32>) -> tensor<2x1x8x1xf32>
  %y = graph.mul %o, %row : (tensor<2x1x8x4xf32>, tensor<2x1x8x1xf32>) -> tensor<2x1x8x4xf32>
  return %y, %both : tensor<2x1x8x4xf32>, tensor<2x8xf32>
}
