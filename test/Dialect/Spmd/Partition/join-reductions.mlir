// RUN: cleave-opt %s --spmd-optimize-collectives --spmd-verify | FileCheck %s

spmd.mesh @mesh <["tp" = 2, "row" = 2, "col" = 2]>

// Between the terms of one sum there may be others: the stream is added first
// where it is normed after a branch.
// CHECK-LABEL: func.func @after_a_branch(
// CHECK-SAME: %[[R:.*]]: tensor<4xf32> {{{.*}}}, %[[X:.*]]: tensor<2x4xf32> {
func.func @after_a_branch(
    %r: tensor<4xf32> {spmd.global_type = tensor<4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{}]>},
    %x: tensor<2x4xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>})
    -> (tensor<4xf32> {spmd.global_type = tensor<4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{}]>}) {
  // CHECK: %[[A:.*]] = graph.reduce sum %[[X]]
  // CHECK: %[[N:.*]] = graph.neg %[[A]]
  // CHECK: %[[T:.*]] = graph.add %[[A]], %[[N]] {{.*}}partial = {"tp"}
  // CHECK: %[[S:.*]] = spmd.all_reduce sum %[[T]] over @mesh {"tp"}
  // CHECK-NOT: all_reduce
  // CHECK: %[[Y:.*]] = graph.add %[[R]], %[[S]]
  // CHECK-NEXT: return %[[Y]]
  %0 = graph.reduce sum %x {dims = array<i64: 0>, spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"tp"}>]} : (tensor<2x4xf32>) -> tensor<4xf32>
  %1 = spmd.all_reduce sum %0 over @mesh {"tp"} {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32>
  %2 = graph.add %r, %1 {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = graph.neg %0 {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"tp"}>]} : (tensor<4xf32>) -> tensor<4xf32>
  %4 = spmd.all_reduce sum %3 over @mesh {"tp"} {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32>
  %5 = graph.add %2, %4 {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %5 : tensor<4xf32>
}

// Parts of a value that steps reduce: the terms of each part are added where
// the later value is reduced.
// CHECK-LABEL: func.func @parts(
// CHECK-SAME: %[[X:.*]]: tensor<2x4xf32> {
func.func @parts(
    %x: tensor<2x4xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"col"}, {}]>})
    -> (tensor<4xf32> {spmd.global_type = tensor<8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"col"}]>}) {
  // CHECK: %[[A:.*]] = graph.reduce sum %[[X]]
  // CHECK: %[[B:.*]] = graph.neg %[[A]]
  // CHECK: %[[T0:.*]] = graph.add %[[A]], %[[B]]
  // CHECK: %[[S0:.*]] = spmd.reduce %[[T0]] over @mesh {"col"} dim 0 part 0
  // CHECK: %[[T1:.*]] = graph.add %[[B]], %[[A]]
  // CHECK: %[[S1:.*]] = spmd.reduce %[[T1]] into %[[S0]] over @mesh {"col"} dim 0 part 1
  // CHECK-NOT: spmd.reduce
  // CHECK: return %[[S1]]
  %0 = graph.reduce sum %x {dims = array<i64: 0>, spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"col"}>]} : (tensor<2x4xf32>) -> tensor<4xf32>
  %1 = graph.neg %0 {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"col"}>]} : (tensor<4xf32>) -> tensor<4xf32>
  %2 = spmd.reduce %0 over @mesh {"col"} dim 0 part 0 {spmd.global_types = [tensor<8xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"col"}]>]} : tensor<4xf32> -> tensor<4xf32>
  %3 = spmd.reduce %1 into %2 over @mesh {"col"} dim 0 part 1 {spmd.global_types = [tensor<8xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"col"}]>]} : tensor<4xf32> -> tensor<4xf32>
  %4 = spmd.reduce %1 over @mesh {"col"} dim 0 part 0 {spmd.global_types = [tensor<8xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"col"}]>]} : tensor<4xf32> -> tensor<4xf32>
  %5 = spmd.reduce %0 into %4 over @mesh {"col"} dim 0 part 1 {spmd.global_types = [tensor<8xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"col"}]>]} : tensor<4xf32> -> tensor<4xf32>
  %6 = graph.add %3, %5 {spmd.global_types = [tensor<8xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"col"}]>]} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %6 : tensor<4xf32>
}

// A number that multiplies a sum multiplies its terms, as scales of 8-bit
// operands do; it is computed before them.
// CHECK-LABEL: func.func @scaled(
// CHECK-SAME: %[[X:.*]]: tensor<2x4xf32> {{{.*}}}, %[[P:.*]]: tensor<f32> {{{.*}}}, %[[Q:.*]]: tensor<f32> {
func.func @scaled(
    %x: tensor<2x4xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
    %p: tensor<f32> {spmd.global_type = tensor<f32>, spmd.sharding = #spmd.sharding<@mesh, []>},
    %q: tensor<f32> {spmd.global_type = tensor<f32>, spmd.sharding = #spmd.sharding<@mesh, []>})
    -> (tensor<4xf32> {spmd.global_type = tensor<4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{}]>}) {
  // CHECK: %[[A:.*]] = graph.reduce sum %[[X]]
  // CHECK: %[[B:.*]] = graph.neg %[[A]]
  // CHECK: %[[N:.*]] = graph.mul %[[P]], %[[Q]]
  // CHECK: %[[AP:.*]] = graph.mul %[[A]], %[[P]] {{.*}}partial = {"tp"}
  // CHECK: %[[BN:.*]] = graph.mul %[[B]], %[[N]] {{.*}}partial = {"tp"}
  // CHECK: %[[T:.*]] = graph.add %[[AP]], %[[BN]] {{.*}}partial = {"tp"}
  // CHECK: %[[S:.*]] = spmd.all_reduce sum %[[T]]
  // CHECK: return %[[S]]
  %0 = graph.reduce sum %x {dims = array<i64: 0>, spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"tp"}>]} : (tensor<2x4xf32>) -> tensor<4xf32>
  %1 = spmd.all_reduce sum %0 over @mesh {"tp"} {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32>
  %2 = graph.mul %1, %p {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %3 = graph.neg %0 {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"tp"}>]} : (tensor<4xf32>) -> tensor<4xf32>
  %4 = spmd.all_reduce sum %3 over @mesh {"tp"} {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32>
  %5 = graph.mul %p, %q {spmd.global_types = [tensor<f32>],
      spmd.shardings = [#spmd.sharding<@mesh, []>]} : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %6 = graph.mul %4, %5 {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %7 = graph.add %2, %6 {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %7 : tensor<4xf32>
}

// Not sums over other ranks, nor what is read beside the sum.
// CHECK-LABEL: func.func @keep(
func.func @keep(
    %x: tensor<2x4xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
    %y: tensor<2x4xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"row"}, {}]>})
    -> (tensor<4xf32> {spmd.global_type = tensor<4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{}]>},
        tensor<4xf32> {spmd.global_type = tensor<4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{}]>}) {
  // CHECK-COUNT-3: spmd.all_reduce
  %0 = graph.reduce sum %x {dims = array<i64: 0>, spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"tp"}>]} : (tensor<2x4xf32>) -> tensor<4xf32>
  %1 = graph.reduce sum %y {dims = array<i64: 0>, spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"row"}>]} : (tensor<2x4xf32>) -> tensor<4xf32>
  %2 = spmd.all_reduce sum %0 over @mesh {"tp"} {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32>
  %3 = spmd.all_reduce sum %1 over @mesh {"row"} {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32>
  %4 = graph.add %2, %3 {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %5 = graph.neg %0 {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"tp"}>]} : (tensor<4xf32>) -> tensor<4xf32>
  %6 = spmd.all_reduce sum %5 over @mesh {"tp"} {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32>
  %7 = graph.add %4, %6 {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %7, %6 : tensor<4xf32>, tensor<4xf32>
}

// What forward sums is reduced there: backward keeps the sum, not its terms.
// CHECK-LABEL: func.func @not_across_a_seed(
func.func @not_across_a_seed(
    %x: tensor<2x4xf32> {spmd.global_type = tensor<4x4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
    %loss: tensor<f32> {spmd.global_type = tensor<f32>, spmd.sharding = #spmd.sharding<@mesh, []>})
    -> (tensor<4xf32> {spmd.global_type = tensor<4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{}]>}) {
  // CHECK: %[[S:.*]] = spmd.all_reduce
  // CHECK: graph.seed
  // CHECK: %[[T:.*]] = spmd.all_reduce
  // CHECK: graph.add %[[S]], %[[T]]
  %0 = graph.reduce sum %x {dims = array<i64: 0>, spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"tp"}>]} : (tensor<2x4xf32>) -> tensor<4xf32>
  %1 = spmd.all_reduce sum %0 over @mesh {"tp"} {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32>
  %2 = graph.seed %loss {spmd.global_types = [tensor<f32>],
      spmd.shardings = [#spmd.sharding<@mesh, []>]} : (tensor<f32>) -> tensor<f32>
  %3 = graph.mul %x, %2 {spmd.global_types = [tensor<4x4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"tp"}, {}]>]} : (tensor<2x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  %4 = graph.reduce sum %3 {dims = array<i64: 0>, spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"tp"}>]} : (tensor<2x4xf32>) -> tensor<4xf32>
  %5 = spmd.all_reduce sum %4 over @mesh {"tp"} {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32>
  %6 = graph.add %1, %5 {spmd.global_types = [tensor<4xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %6 : tensor<4xf32>
}
