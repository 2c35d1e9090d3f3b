// RUN: cleave-opt %s --spmd-chunk-collectives="chunks=2 min-bytes=0" --split-input-file | FileCheck %s
// RUN: cleave-opt %s --spmd-chunk-collectives="chunks=1 min-bytes=0" --split-input-file | FileCheck %s --check-prefix=WHOLE
// RUN: cleave-opt %s --spmd-chunk-collectives="chunks=2 min-bytes=1048577" --split-input-file | FileCheck %s --check-prefix=WHOLE
// WHOLE-NOT: spmd.chunk

spmd.mesh @mesh <["mb" = 2, "tp" = 2]> sequential ["mb"]

// Several contractions read one gather. The second chunk is gathered before the
// first one is computed.
// CHECK-LABEL: func.func @gather(
// CHECK-SAME: %[[X:.*]]: tensor<4x4x8xf32>
func.func @gather(%x: tensor<4x4x8xf32>, %w: tensor<6x8xf32>, %v: tensor<2x8xf32>)
    -> (tensor<4x8x6xf32>, tensor<4x8x2xf32>) {
  // CHECK: %[[X0:.*]] = graph.slice %[[X]] {offsets = array<i64: 0, 0, 0>, sizes = array<i64: 2, 4, 8>
  // CHECK: %[[G0:.*]] = spmd.all_gather %[[X0]] {{.*}}spmd.chunk = array<i64: 0, 0>{{.*}} -> tensor<2x8x8xf32>
  // CHECK: %[[X1:.*]] = graph.slice %[[X]] {offsets = array<i64: 2, 0, 0>
  // CHECK: %[[G1:.*]] = spmd.all_gather %[[X1]] {{.*}}spmd.chunk = array<i64: 0, 1>
  // CHECK: %[[Y0:.*]] = graph.linear %[[G0]],
  // CHECK: %[[Z0:.*]] = graph.linear %[[G0]],
  // CHECK: %[[Y1:.*]] = graph.linear %[[G1]],
  // CHECK: %[[Z1:.*]] = graph.linear %[[G1]],
  // CHECK: %[[Y:.*]] = graph.concat %[[Y0]], %[[Y1]] {dim = 0
  // CHECK: %[[Z:.*]] = graph.concat %[[Z0]], %[[Z1]] {dim = 0
  // CHECK: return %[[Y]], %[[Z]]
  %g = spmd.all_gather %x by <@mesh, [{}, {"tp"}, {}]> : tensor<4x4x8xf32> -> tensor<4x8x8xf32>
  %y = graph.linear %g, %w : (tensor<4x8x8xf32>, tensor<6x8xf32>) -> tensor<4x8x6xf32>
  %z = graph.linear %g, %v : (tensor<4x8x8xf32>, tensor<2x8xf32>) -> tensor<4x8x2xf32>
  return %y, %z : tensor<4x8x6xf32>, tensor<4x8x2xf32>
}

// A chunk is scattered while the next one is computed. The sum of two products
// is cut with them.
// CHECK-LABEL: func.func @scatter(
func.func @scatter(%x: tensor<4x8x8xf32>, %w: tensor<6x8xf32>, %v: tensor<6x8xf32>) -> tensor<4x4x6xf32> {
  // CHECK: linear
  // CHECK: linear
  // CHECK: %[[S0:.*]] = graph.add
  // CHECK: %[[R0:.*]] = spmd.reduce_scatter sum %[[S0]] {{.*}}spmd.chunk = array<i64: 0, 0>{{.*}} tensor<2x8x6xf32> -> tensor<2x4x6xf32>
  // CHECK: linear
  // CHECK: linear
  // CHECK: %[[S1:.*]] = graph.add
  // CHECK: %[[R1:.*]] = spmd.reduce_scatter sum %[[S1]] {{.*}}spmd.chunk = array<i64: 0, 1>
  // CHECK: graph.concat %[[R0]], %[[R1]] {dim = 0
  %y = graph.linear %x, %w : (tensor<4x8x8xf32>, tensor<6x8xf32>) -> tensor<4x8x6xf32>
  %z = graph.linear %x, %v : (tensor<4x8x8xf32>, tensor<6x8xf32>) -> tensor<4x8x6xf32>
  %s = graph.add %y, %z : (tensor<4x8x6xf32>, tensor<4x8x6xf32>) -> tensor<4x8x6xf32>
  %r = spmd.reduce_scatter sum %s by <@mesh, [{}, {"tp"}, {}]> : tensor<4x8x6xf32> -> tensor<4x4x6xf32>
  return %r : tensor<4x4x6xf32>
}

// One sample: an all_reduce is cut along positions.
// CHECK-LABEL: func.func @reduce(
func.func @reduce(%x: tensor<1x8x8xf32>, %w: tensor<6x8xf32>) -> tensor<1x8x6xf32> {
  // CHECK: graph.linear {{.*}} -> tensor<1x4x6xf32>
  // CHECK: spmd.all_reduce {{.*}} : tensor<1x4x6xf32>
  // CHECK: graph.linear {{.*}} -> tensor<1x4x6xf32>
  // CHECK: spmd.all_reduce {{.*}} : tensor<1x4x6xf32>
  // CHECK: graph.concat {{.*}} {dim = 1
  %y = graph.linear %x, %w : (tensor<1x8x8xf32>, tensor<6x8xf32>) -> tensor<1x8x6xf32>
  %r = spmd.all_reduce sum %y over @mesh {"tp"} : tensor<1x8x6xf32>
  return %r : tensor<1x8x6xf32>
}

// From the gather to the scatter chunk by chunk. What is kept for backward is
// concatenated. A contraction over the samples reads what was gathered as a
// whole, after all chunks.
// CHECK-LABEL: func.func @chain(
func.func @chain(%x: tensor<4x4x8xf32>, %w: tensor<6x8xf32>, %v: tensor<8x6xf32>, %d: tensor<4x8x6xf32>)
    -> (tensor<4x4x8xf32>, tensor<4x8x6xf32>, tensor<6x8xf32>) {
  // CHECK: %[[G0:.*]] = spmd.all_gather
  // CHECK: %[[G1:.*]] = spmd.all_gather
  // CHECK: %[[U0:.*]] = graph.linear %[[G0]]
  // CHECK: %[[A0:.*]] = graph.gelu %[[U0]]
  // CHECK: %[[O0:.*]] = graph.linear %[[A0]]
  // CHECK: %[[R0:.*]] = spmd.reduce_scatter sum %[[O0]]
  // CHECK: %[[U1:.*]] = graph.linear %[[G1]]
  // CHECK: %[[A1:.*]] = graph.gelu %[[U1]]
  // CHECK: %[[O1:.*]] = graph.linear %[[A1]]
  // CHECK: %[[R1:.*]] = spmd.reduce_scatter sum %[[O1]]
  // CHECK: %[[G:.*]] = graph.concat %[[G0]], %[[G1]]
  // CHECK: %[[U:.*]] = graph.concat %[[U0]], %[[U1]]
  // CHECK: %[[R:.*]] = graph.concat %[[R0]], %[[R1]]
  // CHECK: %[[D:.*]] = graph.contract {{.*}}, %[[G]]
  // CHECK: return %[[R]], %[[U]], %[[D]]
  %g = spmd.all_gather %x by <@mesh, [{}, {"tp"}, {}]> : tensor<4x4x8xf32> -> tensor<4x8x8xf32>
  %u = graph.linear %g, %w : (tensor<4x8x8xf32>, tensor<6x8xf32>) -> tensor<4x8x6xf32>
  %dw = graph.contract "bso,bsi->oi" %d, %g : (tensor<4x8x6xf32>, tensor<4x8x8xf32>) -> tensor<6x8xf32>
  %a = graph.gelu %u : (tensor<4x8x6xf32>) -> tensor<4x8x6xf32>
  %o = graph.linear %a, %v : (tensor<4x8x6xf32>, tensor<8x6xf32>) -> tensor<4x8x8xf32>
  %r = spmd.reduce_scatter sum %o by <@mesh, [{}, {"tp"}, {}]> : tensor<4x8x8xf32> -> tensor<4x4x8xf32>
  return %r, %u, %dw : tensor<4x4x8xf32>, tensor<4x8x6xf32>, tensor<6x8xf32>
}

// What follows a contraction and is read by another one, even by one that stays
// whole, is cut too: the library may compute it with the sums.
// CHECK-LABEL: func.func @follower(
func.func @follower(%x: tensor<4x4x8xf32>, %w: tensor<6x8xf32>, %u: tensor<4x8x6xf32>, %h: tensor<4x8x8xf32>)
    -> (tensor<6x8xf32>, tensor<4x8x6xf32>) {
  // CHECK: %[[Y0:.*]] = graph.linear
  // CHECK: %[[D0:.*]] = graph.gelu_grad %[[Y0]], {{.*}} -> tensor<2x8x6xf32>
  // CHECK: %[[Y1:.*]] = graph.linear
  // CHECK: %[[D1:.*]] = graph.gelu_grad %[[Y1]], {{.*}} -> tensor<2x8x6xf32>
  // CHECK: %[[D:.*]] = graph.concat %[[D0]], %[[D1]]
  // CHECK: graph.exp %[[D]]
  // CHECK: graph.contract {{.*}} %[[D]]
  %g = spmd.all_gather %x by <@mesh, [{}, {"tp"}, {}]> : tensor<4x4x8xf32> -> tensor<4x8x8xf32>
  %y = graph.linear %g, %w : (tensor<4x8x8xf32>, tensor<6x8xf32>) -> tensor<4x8x6xf32>
  %d = graph.gelu_grad %y, %u {tanh} : (tensor<4x8x6xf32>, tensor<4x8x6xf32>) -> tensor<4x8x6xf32>
  %e = graph.exp %d : (tensor<4x8x6xf32>) -> tensor<4x8x6xf32>
  %dw = graph.contract "bso,bsi->oi" %d, %h : (tensor<4x8x6xf32>, tensor<4x8x8xf32>) -> tensor<6x8xf32>
  return %dw, %e : tensor<6x8xf32>, tensor<4x8x6xf32>
}

// A norm of all chunks stands between the contractions: two chains.
// CHECK-LABEL: func.func @circle(
func.func @circle(%x: tensor<4x4x8xf32>, %w: tensor<6x8xf32>, %v: tensor<8x6xf32>) -> tensor<4x4x8xf32> {
  // CHECK: spmd.chunk = array<i64: 0, 0>
  // CHECK: spmd.chunk = array<i64: 0, 1>
  // CHECK: graph.concat
  // CHECK: graph.reduce
  // CHECK: graph.mul
  // CHECK: spmd.reduce_scatter {{.*}}spmd.chunk = array<i64: 1, 0>
  // CHECK: spmd.reduce_scatter {{.*}}spmd.chunk = array<i64: 1, 1>
  %g = spmd.all_gather %x by <@mesh, [{}, {"tp"}, {}]> : tensor<4x4x8xf32> -> tensor<4x8x8xf32>
  %u = graph.linear %g, %w : (tensor<4x8x8xf32>, tensor<6x8xf32>) -> tensor<4x8x6xf32>
  %n = graph.reduce sum %u {dims = array<i64: 0, 1, 2>} : (tensor<4x8x6xf32>) -> tensor<f32>
  %a = graph.mul %u, %n : (tensor<4x8x6xf32>, tensor<f32>) -> tensor<4x8x6xf32>
  %o = graph.linear %a, %v : (tensor<4x8x6xf32>, tensor<8x6xf32>) -> tensor<4x8x8xf32>
  %r = spmd.reduce_scatter sum %o by <@mesh, [{}, {"tp"}, {}]> : tensor<4x8x8xf32> -> tensor<4x4x8xf32>
  return %r : tensor<4x4x8xf32>
}

// Left whole: what is gathered or scattered along its first dimension; the sum of
// products over it; a sum over micro-batches; and a reduction that overlaps with
// another contraction already.
// CHECK-LABEL: func.func @whole(
// CHECK-NOT: spmd.chunk
func.func @whole(%x: tensor<4x8xf32>, %y: tensor<4x8xf32>, %w: tensor<8x8xf32>)
    -> (tensor<8x8xf32>, tensor<2x8xf32>, tensor<8x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) {
  %g = spmd.all_gather %x by <@mesh, [{"tp"}, {}]> : tensor<4x8xf32> -> tensor<8x8xf32>
  %0 = graph.linear %g, %w : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %p = graph.linear %x, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = spmd.reduce_scatter sum %p by <@mesh, [{"tp"}, {}]> : tensor<4x8xf32> -> tensor<2x8xf32>
  %d = graph.contract "bo,bi->oi" %x, %y : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  %2 = spmd.all_reduce sum %d over @mesh {"tp"} : tensor<8x8xf32>
  %q = graph.linear %y, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %3 = spmd.all_reduce sum %q over @mesh {"mb"} : tensor<4x8xf32>
  %s = graph.linear %p, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %t = spmd.all_reduce sum %s over @mesh {"tp"} : tensor<4x8xf32>
  %u = graph.linear %q, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %4 = graph.exp %t : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %0, %1, %2, %3, %4, %u : tensor<8x8xf32>, tensor<2x8xf32>, tensor<8x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>
}

// A contraction that backward computes again, and the first one: each chunk has
// a number of its own.
// CHECK-LABEL: func.func @twins(
func.func @twins(%x: tensor<4x4x8xf32>, %y: tensor<4x4x8xf32>, %w: tensor<6x8xf32>) -> (tensor<4x8x6xf32>, tensor<4x8x6xf32>) {
  // CHECK: graph.linear {{.*}} {graph.twin = 4 : i64}
  // CHECK: graph.linear {{.*}} {graph.twin = 5 : i64}
  // CHECK: graph.linear {{.*}} {graph.clone, graph.twin = 4 : i64}
  // CHECK: graph.linear {{.*}} {graph.clone, graph.twin = 5 : i64}
  %g = spmd.all_gather %x by <@mesh, [{}, {"tp"}, {}]> : tensor<4x4x8xf32> -> tensor<4x8x8xf32>
  %0 = graph.linear %g, %w {graph.twin = 3 : i64} : (tensor<4x8x8xf32>, tensor<6x8xf32>) -> tensor<4x8x6xf32>
  %h = spmd.all_gather %y by <@mesh, [{}, {"tp"}, {}]> : tensor<4x4x8xf32> -> tensor<4x8x8xf32>
  %1 = graph.linear %h, %w {graph.clone, graph.twin = 3 : i64} : (tensor<4x8x8xf32>, tensor<6x8xf32>) -> tensor<4x8x6xf32>
  return %0, %1 : tensor<4x8x6xf32>, tensor<4x8x6xf32>
}

// What reads all chunks of one chain may belong to another, which is then written
// behind it: %b1 reads a part of what the first chain gives.
// CHECK-LABEL: func.func @moved(
// CHECK-COUNT-4: spmd.all_gather
// CHECK: return
func.func @moved(%x: tensor<4x4x8xf32>, %z: tensor<4x4x8xf32>, %w: tensor<8x8xf32>, %w2: tensor<6x8xf32>, %w3: tensor<6x8xf32>)
    -> (tensor<4x4x6xf32>, tensor<4x8x4xf32>, tensor<4x8x6xf32>) {
  %ga = spmd.all_gather %x by <@mesh, [{}, {"tp"}, {}]> : tensor<4x4x8xf32> -> tensor<4x8x8xf32>
  %ya = graph.linear %ga, %w : (tensor<4x8x8xf32>, tensor<8x8xf32>) -> tensor<4x8x8xf32>
  %gb = spmd.all_gather %z by <@mesh, [{}, {"tp"}, {}]> : tensor<4x4x8xf32> -> tensor<4x8x8xf32>
  %t = graph.slice %ya {offsets = array<i64: 0, 0, 0>, sizes = array<i64: 1, 4, 8>, strides = array<i64: 1, 1, 1>} : (tensor<4x8x8xf32>) -> tensor<1x4x8xf32>
  %v = graph.reshape %t : (tensor<1x4x8xf32>) -> tensor<4x8xf32>
  %b1 = graph.linear %gb, %v : (tensor<4x8x8xf32>, tensor<4x8xf32>) -> tensor<4x8x4xf32>
  %b2 = graph.linear %gb, %w2 : (tensor<4x8x8xf32>, tensor<6x8xf32>) -> tensor<4x8x6xf32>
  %za = graph.linear %ya, %w3 : (tensor<4x8x8xf32>, tensor<6x8xf32>) -> tensor<4x8x6xf32>
  %ra = spmd.reduce_scatter sum %za by <@mesh, [{}, {"tp"}, {}]> : tensor<4x8x6xf32> -> tensor<4x4x6xf32>
  return %ra, %b1, %b2 : tensor<4x4x6xf32>, tensor<4x8x4xf32>, tensor<4x8x6xf32>
}
