// RUN: cleave-opt %s --spmd-optimize-collectives --spmd-verify | FileCheck %s

spmd.mesh @mesh <["mb" = 2, "dp" = 2, "tp" = 2]> sequential ["mb"]

// CHECK-LABEL: func.func @scatter(
func.func @scatter(
    %x: tensor<4x4xf32> {spmd.global_type = tensor<8x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>})
    -> (tensor<2xf32> {spmd.global_type = tensor<4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>}) {
  %0 = graph.reduce sum %x {dims = array<i64: 0>, spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"dp"}>]} : (tensor<4x4xf32>) -> tensor<4xf32>
  // CHECK-NOT: all_reduce
  // CHECK: %[[Y:.*]] = spmd.reduce_scatter sum %{{.*}} by <@mesh, [{"dp"}]> {{.*}} : tensor<4xf32> -> tensor<2xf32>
  // CHECK-NEXT: return %[[Y]]
  %1 = spmd.all_reduce sum %0 over @mesh {"dp"} {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32>
  %2 = spmd.slice %1 by <@mesh, [{"dp"}]> {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}]>]} : tensor<4xf32> -> tensor<2xf32>
  return %2 : tensor<2xf32>
}

// What the slice does not split along is reduced behind it.
// CHECK-LABEL: func.func @scatter_then_reduce(
func.func @scatter_then_reduce(
    %x: tensor<2x4xf32> {spmd.global_type = tensor<8x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"dp", "tp"}, {}]>})
    -> (tensor<2xf32> {spmd.global_type = tensor<4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"tp"}]>}) {
  %0 = graph.reduce sum %x {dims = array<i64: 0>, spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"dp", "tp"}>]} : (tensor<2x4xf32>) -> tensor<4xf32>
  // CHECK: %[[P:.*]] = spmd.reduce_scatter sum %{{.*}} by <@mesh, [{"tp"}]> {{.*}} partial = {"dp"}
  // CHECK-NEXT: spmd.all_reduce sum %[[P]] over @mesh {"dp"} {{.*}} : tensor<2xf32>
  %1 = spmd.all_reduce sum %0 over @mesh {"dp", "tp"} {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32>
  %2 = spmd.slice %1 by <@mesh, [{"tp"}]> {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"tp"}]>]} : tensor<4xf32> -> tensor<2xf32>
  return %2 : tensor<2xf32>
}

// Not where the sum has another reader, the slice is along other axes, or
// positions run one after the other.
// CHECK-LABEL: func.func @keep(
func.func @keep(
    %x: tensor<4x4xf32> {spmd.global_type = tensor<8x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>},
    %y: tensor<4x4xf32> {spmd.global_type = tensor<8x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"mb"}, {}]>})
    -> (tensor<2xf32> {spmd.global_type = tensor<4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>},
        tensor<4xf32> {spmd.global_type = tensor<4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{}]>},
        tensor<2xf32> {spmd.global_type = tensor<4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"tp"}]>},
        tensor<2xf32> {spmd.global_type = tensor<4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"mb"}]>}) {
  // CHECK-NOT: reduce_scatter
  %0 = graph.reduce sum %x {dims = array<i64: 0>, spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"dp"}>]} : (tensor<4x4xf32>) -> tensor<4xf32>
  %1 = spmd.all_reduce sum %0 over @mesh {"dp"} {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32>
  %2 = spmd.slice %1 by <@mesh, [{"dp"}]> {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}]>]} : tensor<4xf32> -> tensor<2xf32>
  %3 = graph.neg %0 {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"dp"}>]} : (tensor<4xf32>) -> tensor<4xf32>
  %4 = spmd.all_reduce sum %3 over @mesh {"dp"} {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32>
  %5 = spmd.slice %4 by <@mesh, [{"tp"}]> {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"tp"}]>]} : tensor<4xf32> -> tensor<2xf32>
  %6 = graph.reduce sum %y {dims = array<i64: 0>, spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"mb"}>]} : (tensor<4x4xf32>) -> tensor<4xf32>
  %7 = spmd.all_reduce sum %6 over @mesh {"mb"} {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32>
  %8 = spmd.slice %7 by <@mesh, [{"mb"}]> {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"mb"}]>]} : tensor<4xf32> -> tensor<2xf32>
  // CHECK: return
  return %2, %1, %5, %8 : tensor<2xf32>, tensor<4xf32>, tensor<2xf32>, tensor<2xf32>
}

// Equal gathers are one, and one that is undone is none.
// CHECK-LABEL: func.func @once(
// CHECK-SAME: %[[X:arg0]]: tensor<4xf32>
func.func @once(
    %x: tensor<4xf32> {spmd.global_type = tensor<8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>})
    -> (tensor<8xf32> {spmd.global_type = tensor<8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{}]>},
        tensor<8xf32> {spmd.global_type = tensor<8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{}]>},
        tensor<4xf32> {spmd.global_type = tensor<8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>}) {
  // CHECK-NEXT: %[[G:.*]] = spmd.all_gather %[[X]]
  // CHECK-NEXT: return %[[G]], %[[G]], %[[X]]
  %0 = spmd.all_gather %x by <@mesh, [{"dp"}]> {spmd.global_types = [tensor<8xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32> -> tensor<8xf32>
  %1 = spmd.all_gather %x by <@mesh, [{"dp"}]> {spmd.global_types = [tensor<8xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32> -> tensor<8xf32>
  %2 = spmd.slice %0 by <@mesh, [{"dp"}]> {spmd.global_types = [tensor<8xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}]>]} : tensor<8xf32> -> tensor<4xf32>
  return %0, %1, %2 : tensor<8xf32>, tensor<8xf32>, tensor<4xf32>
}

// What forward gathered is not kept for backward, which gathers again.
// CHECK-LABEL: func.func @never_across_a_seed(
// CHECK-SAME: %[[X:arg0]]: tensor<4xf32>
func.func @never_across_a_seed(
    %x: tensor<4xf32> {spmd.global_type = tensor<8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>})
    -> (tensor<f32> {spmd.global_type = tensor<f32>, spmd.sharding = #spmd.sharding<@mesh, []>},
        tensor<8xf32> {spmd.global_type = tensor<8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{}]>},
        tensor<8xf32> {spmd.global_type = tensor<8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{}]>}) {
  // CHECK: spmd.all_gather %[[X]]
  %0 = spmd.all_gather %x by <@mesh, [{"dp"}]> {spmd.global_types = [tensor<8xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32> -> tensor<8xf32>
  %loss = graph.reduce sum %0 {dims = array<i64: 0>, spmd.global_types = [tensor<f32>],
      spmd.shardings = [#spmd.sharding<@mesh, []>]} : (tensor<8xf32>) -> tensor<f32>
  %seed = graph.seed %loss {spmd.global_types = [tensor<f32>],
      spmd.shardings = [#spmd.sharding<@mesh, []>]} : (tensor<f32>) -> tensor<f32>
  // CHECK: %[[BACKWARD:.*]] = spmd.all_gather %[[X]]
  %1 = spmd.all_gather %x by <@mesh, [{"dp"}]> {spmd.global_types = [tensor<8xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32> -> tensor<8xf32>
  // CHECK: graph.mul %[[BACKWARD]]
  %2 = graph.mul %1, %seed {spmd.global_types = [tensor<8xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
  // Within backward, once.
  // CHECK: %[[SAVED:.*]] = spmd.barrier
  // CHECK-NEXT: %[[AGAIN:.*]] = spmd.all_gather %[[SAVED]]
  // CHECK-NEXT: graph.add %[[AGAIN]], %[[AGAIN]]
  %3 = spmd.barrier %x after %seed {spmd.global_types = [tensor<8xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}]>]} : tensor<4xf32>, tensor<f32>
  %4 = spmd.all_gather %3 by <@mesh, [{"dp"}]> {spmd.global_types = [tensor<8xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32> -> tensor<8xf32>
  %5 = spmd.barrier %x after %seed {spmd.global_types = [tensor<8xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}]>]} : tensor<4xf32>, tensor<f32>
  %6 = spmd.all_gather %5 by <@mesh, [{"dp"}]> {spmd.global_types = [tensor<8xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32> -> tensor<8xf32>
  %7 = graph.add %4, %6 {spmd.global_types = [tensor<8xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  return %loss, %2, %7 : tensor<f32>, tensor<8xf32>, tensor<8xf32>
}

// There and back again is nowhere; elsewhere is not.
// CHECK-LABEL: func.func @there_and_back(
// CHECK-SAME: %[[X:arg0]]: tensor<4x8xf32>
func.func @there_and_back(
    %x: tensor<4x8xf32> {spmd.global_type = tensor<8x8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>})
    -> (tensor<4x8xf32> {spmd.global_type = tensor<8x8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>},
        tensor<8x4xf32> {spmd.global_type = tensor<8x8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{}, {"dp"}]>},
        tensor<4x8xf32> {spmd.global_type = tensor<8x8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>}) {
  // CHECK-NEXT: %[[N:.*]] = graph.neg %[[X]]
  // CHECK-NEXT: %[[T:.*]] = spmd.all_to_all %[[N]]
  // CHECK-NEXT: %[[E:.*]] = graph.exp %[[N]]
  // CHECK-NEXT: %[[P:.*]] = spmd.permute %[[N]]
  // CHECK-NEXT: return %[[E]], %[[T]], %[[P]]
  %0 = graph.neg %x {spmd.global_types = [tensor<8x8xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}, {}]>]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = spmd.all_to_all %0 over @mesh {"dp"} from 0 to 1 {spmd.global_types = [tensor<8x8xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}, {"dp"}]>]} : tensor<4x8xf32> -> tensor<8x4xf32>
  %2 = spmd.all_to_all %1 over @mesh {"dp"} from 1 to 0 {spmd.global_types = [tensor<8x8xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}, {}]>]} : tensor<8x4xf32> -> tensor<4x8xf32>
  %3 = graph.exp %2 {spmd.global_types = [tensor<8x8xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}, {}]>]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %4 = spmd.permute %0 from <@mesh, [{"dp"}, {}]> to <@mesh, [{"tp"}, {}]> {spmd.global_types = [tensor<8x8xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"tp"}, {}]>]} : tensor<4x8xf32>
  return %3, %1, %4 : tensor<4x8xf32>, tensor<8x4xf32>, tensor<4x8xf32>
}

// What is added behind the reduction is added before it; not where a sum has
// another reader.
// CHECK-LABEL: func.func @sum_of_sums(
func.func @sum_of_sums(
    %x: tensor<4x4xf32> {spmd.global_type = tensor<8x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>},
    %y: tensor<4x4xf32> {spmd.global_type = tensor<8x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>})
    -> (tensor<2xf32> {spmd.global_type = tensor<4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>},
        tensor<2xf32> {spmd.global_type = tensor<4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>},
        tensor<2xf32> {spmd.global_type = tensor<4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>}) {
  %0 = graph.reduce sum %x {dims = array<i64: 0>, spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"dp"}>]} : (tensor<4x4xf32>) -> tensor<4xf32>
  %1 = graph.reduce sum %y {dims = array<i64: 0>, spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"dp"}>]} : (tensor<4x4xf32>) -> tensor<4xf32>
  // CHECK: %[[A:.*]] = graph.reduce
  // CHECK: %[[B:.*]] = graph.reduce
  // CHECK: %[[T:.*]] = graph.add %[[A]], %[[B]]
  // CHECK: %[[S:.*]] = spmd.reduce_scatter sum %[[T]] by
  %2 = spmd.reduce_scatter sum %0 by <@mesh, [{"dp"}]> {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}]>]} : tensor<4xf32> -> tensor<2xf32>
  %3 = spmd.reduce_scatter sum %1 by <@mesh, [{"dp"}]> {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}]>]} : tensor<4xf32> -> tensor<2xf32>
  %4 = graph.add %2, %3 {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}]>]} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  // CHECK: %[[C:.*]] = graph.neg %[[A]]
  // CHECK: %[[D:.*]] = graph.neg %[[B]]
  // CHECK: %[[R0:.*]] = spmd.reduce_scatter sum %[[C]] by
  // CHECK: %[[R1:.*]] = spmd.reduce_scatter sum %[[D]] by
  // CHECK: %[[S1:.*]] = graph.add %[[R0]], %[[R1]]
  // CHECK: return %[[S]], %[[S1]], %[[R1]]
  %5 = graph.neg %0 {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"dp"}>]} : (tensor<4xf32>) -> tensor<4xf32>
  %6 = graph.neg %1 {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"dp"}>]} : (tensor<4xf32>) -> tensor<4xf32>
  %7 = spmd.reduce_scatter sum %5 by <@mesh, [{"dp"}]> {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}]>]} : tensor<4xf32> -> tensor<2xf32>
  %8 = spmd.reduce_scatter sum %6 by <@mesh, [{"dp"}]> {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}]>]} : tensor<4xf32> -> tensor<2xf32>
  %9 = graph.add %7, %8 {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}]>]} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return %4, %9, %8 : tensor<2xf32>, tensor<2xf32>, tensor<2xf32>
}

// Pieces that are rounded after they are reduced, of which a slice is read, are
// one sum, which is rounded after it is scattered.
// CHECK-LABEL: func.func @scatter_pieces(
func.func @scatter_pieces(
    %x: tensor<4x4xf32> {spmd.global_type = tensor<8x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>},
    %y: tensor<4x4xf32> {spmd.global_type = tensor<8x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>})
    -> (tensor<4xbf16> {spmd.global_type = tensor<8xbf16>, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>}) {
  // CHECK-NOT: all_reduce
  // CHECK: %[[A:.*]] = graph.reduce sum
  // CHECK: %[[B:.*]] = graph.reduce sum
  // CHECK: %[[C:.*]] = graph.concat %[[A]], %[[B]] {{.*}} partial = {"dp"}{{.*}} -> tensor<8xf32>
  // CHECK-NEXT: %[[S:.*]] = spmd.reduce_scatter sum %[[C]] by <@mesh, [{"dp"}]> {{.*}} : tensor<8xf32> -> tensor<4xf32>
  // CHECK-NEXT: %[[R:.*]] = graph.cast %[[S]] {{.*}} -> tensor<4xbf16>
  // CHECK-NEXT: return %[[R]]
  %0 = graph.reduce sum %x {dims = array<i64: 0>, spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"dp"}>]} : (tensor<4x4xf32>) -> tensor<4xf32>
  %1 = spmd.all_reduce sum %0 over @mesh {"dp"} {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32>
  %2 = graph.cast %1 {spmd.global_types = [tensor<4xbf16>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : (tensor<4xf32>) -> tensor<4xbf16>
  %3 = graph.reduce sum %y {dims = array<i64: 0>, spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"dp"}>]} : (tensor<4x4xf32>) -> tensor<4xf32>
  %4 = spmd.all_reduce sum %3 over @mesh {"dp"} {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32>
  %5 = graph.cast %4 {spmd.global_types = [tensor<4xbf16>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : (tensor<4xf32>) -> tensor<4xbf16>
  %6 = graph.concat %2, %5 {dim = 0 : i64, spmd.global_types = [tensor<8xbf16>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : (tensor<4xbf16>, tensor<4xbf16>) -> tensor<8xbf16>
  %7 = spmd.slice %6 by <@mesh, [{"dp"}]> {spmd.global_types = [tensor<8xbf16>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}]>]} : tensor<8xbf16> -> tensor<4xbf16>
  return %7 : tensor<4xbf16>
}

// Not where a piece is no sum.
// CHECK-LABEL: func.func @keep_pieces(
func.func @keep_pieces(
    %x: tensor<4x4xf32> {spmd.global_type = tensor<8x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}, {}]>},
    %y: tensor<4xbf16> {spmd.global_type = tensor<4xbf16>, spmd.sharding = #spmd.sharding<@mesh, [{}]>})
    -> (tensor<4xbf16> {spmd.global_type = tensor<8xbf16>, spmd.sharding = #spmd.sharding<@mesh, [{"dp"}]>}) {
  // CHECK: spmd.all_reduce sum
  // CHECK-NOT: reduce_scatter
  %0 = graph.reduce sum %x {dims = array<i64: 0>, spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"dp"}>]} : (tensor<4x4xf32>) -> tensor<4xf32>
  %1 = spmd.all_reduce sum %0 over @mesh {"dp"} {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32>
  %2 = graph.cast %1 {spmd.global_types = [tensor<4xbf16>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : (tensor<4xf32>) -> tensor<4xbf16>
  %3 = graph.concat %2, %y {dim = 0 : i64, spmd.global_types = [tensor<8xbf16>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : (tensor<4xbf16>, tensor<4xbf16>) -> tensor<8xbf16>
  %4 = spmd.slice %3 by <@mesh, [{"dp"}]> {spmd.global_types = [tensor<8xbf16>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}]>]} : tensor<8xbf16> -> tensor<4xbf16>
  return %4 : tensor<4xbf16>
}
