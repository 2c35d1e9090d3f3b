// RUN: cleave-opt %s --pass-pipeline='builtin.module(func.func(exec-select-collectives))' | FileCheck %s

// Devices: "mb" takes none; "dp" is major, "tp" has two digits.
spmd.mesh @mesh <["mb" = 3, "dp" = 2, "tp" = 4, "one" = 1]> sequential ["mb"]

// CHECK-LABEL: func.func @reductions(
func.func @reductions(%x: tensor<8x4xf32>, %flag: tensor<i1>) -> (tensor<8x4xf32>, tensor<2x4xf32>, tensor<i1>) {
  // CHECK: exec.collective all_reduce %{{.*}} over @mesh <{"dp", "tp"}> {block = array<i64: 8, 4>} : tensor<8x4xf32> -> tensor<8x4xf32>
  %0 = spmd.all_reduce sum %x over @mesh {"dp", "tp"} : tensor<8x4xf32>
  // CHECK: exec.collective reduce_scatter %{{.*}} over @mesh <{"tp"}> {block = array<i64: 2, 4>, reduction = 1 : i32, src_starts = array<i64: 0, 0, 2, 0, 4, 0, 6, 0>} : tensor<8x4xf32> -> tensor<2x4xf32>
  %1 = spmd.reduce_scatter max %x by <@mesh, [{"tp"}, {}]> : tensor<8x4xf32> -> tensor<2x4xf32>
  // CHECK: exec.collective all_reduce %{{.*}} over @mesh <{"dp"}> {block = array<i64>, reduction = 2 : i32} : tensor<i1> -> tensor<i1>
  %2 = spmd.all_reduce min %flag over @mesh {"dp"} : tensor<i1>
  return %0, %1, %2 : tensor<8x4xf32>, tensor<2x4xf32>, tensor<i1>
}

// Parts of two dimensions at once, by a digit of an axis and by another axis:
// the members are numbered by both, the first of them major.
// CHECK-LABEL: func.func @gather(
func.func @gather(%x: tensor<3x5xf32>) -> tensor<6x10xf32> {
  // CHECK: exec.collective all_gather %{{.*}} over @mesh <{"tp":(2)2, "dp"}>
  // CHECK-SAME: block = array<i64: 3, 5>
  // CHECK-SAME: dst_starts = array<i64: 0, 0, 0, 5, 3, 0, 3, 5>
  %0 = spmd.all_gather %x by <@mesh, [{"tp":(2)2}, {"dp"}]> : tensor<3x5xf32> -> tensor<6x10xf32>
  return %0 : tensor<6x10xf32>
}

// CHECK-LABEL: func.func @exchange(
func.func @exchange(%x: tensor<2x12xf32>, %y: tensor<4xi64>) -> (tensor<8x3xf32>, tensor<4xi64>) {
  // CHECK: exec.collective all_to_all %{{.*}} over @mesh <{"tp"}>
  // CHECK-SAME: block = array<i64: 2, 3>
  // CHECK-SAME: dst_starts = array<i64: 0, 0, 2, 0, 4, 0, 6, 0>
  // CHECK-SAME: src_starts = array<i64: 0, 0, 0, 3, 0, 6, 0, 9>
  %0 = spmd.all_to_all %x over @mesh {"tp"} from 0 to 1 : tensor<2x12xf32> -> tensor<8x3xf32>
  // Part dp becomes part of the major digit of tp, and the other way round.
  // CHECK: exec.collective permute %{{.*}} over @mesh <{"dp", "tp":(1)2}> {block = array<i64: 4>, sources = array<i64: 0, 2, 1, 3>}
  %1 = spmd.permute %y from <@mesh, [{"dp"}]> to <@mesh, [{"tp":(1)2}]> : tensor<4xi64>
  return %0, %1 : tensor<8x3xf32>, tensor<4xi64>
}

// Values say how many rows go to each member.
// CHECK-LABEL: func.func @rows(
func.func @rows(%x: tensor<2x12xf32>, %s: tensor<5xi64>, %r: tensor<5xi64>) -> tensor<6x12xf32> {
  // CHECK: exec.all_to_all_rows %arg0 from %arg1 to %arg2 over @mesh <{"tp"}> : tensor<2x12xf32>, tensor<5xi64> -> tensor<6x12xf32>
  %0 = spmd.all_to_all_rows %x from %s to %r over @mesh {"tp"} : tensor<2x12xf32>, tensor<5xi64> -> tensor<6x12xf32>
  return %0 : tensor<6x12xf32>
}

// The number of a part is that of the member that has it; sums are put into what
// is zero first.
// CHECK-LABEL: func.func @parts(
func.func @parts(%x: tensor<4x6xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>) {
  // CHECK: %[[PART:.*]] = exec.collective broadcast %{{.*}} over @mesh <{"tp"}> {block = array<i64: 4, 6>, root = 3 : i64} : tensor<4x6xf32> -> tensor<4x6xf32>
  %0 = spmd.broadcast %x over @mesh {"tp"} dim 1 part 3 : tensor<4x6xf32> -> tensor<4x6xf32>
  // CHECK: %[[ZERO:.*]] = graph.constant dense<0.000000e+00>
  // CHECK: %[[SUM:.*]] = exec.collective reduce %[[PART]] into %[[ZERO]] : tensor<4x6xf32> over @mesh <{"tp"}> {block = array<i64: 4, 6>} : tensor<4x6xf32> -> tensor<4x6xf32>
  %1 = spmd.reduce %0 over @mesh {"tp"} dim 0 part 0 : tensor<4x6xf32> -> tensor<4x6xf32>
  // CHECK: exec.collective reduce %[[PART]] into %[[SUM]] : tensor<4x6xf32> over @mesh <{"tp"}> {block = array<i64: 4, 6>, root = 1 : i64}
  %2 = spmd.reduce %0 into %1 over @mesh {"tp"} dim 0 part 1 : tensor<4x6xf32> -> tensor<4x6xf32>
  return %0, %2 : tensor<4x6xf32>, tensor<4x6xf32>
}

// What is filled part by part begins as anything.
// CHECK-LABEL: func.func @all_parts(
func.func @all_parts(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
  // CHECK-NOT: graph.constant
  // CHECK: %[[SUM:.*]] = exec.collective reduce %arg0 over @mesh <{"dp"}> {block = array<i64: 4, 6>, root = 1 : i64}
  %0 = spmd.reduce %x over @mesh {"dp"} dim 0 part 1 : tensor<4x6xf32> -> tensor<4x6xf32>
  // CHECK: exec.collective reduce %arg0 into %[[SUM]] : tensor<4x6xf32> over @mesh <{"dp"}> {block = array<i64: 4, 6>}
  %1 = spmd.reduce %x into %0 over @mesh {"dp"} dim 0 part 0 : tensor<4x6xf32> -> tensor<4x6xf32>
  return %1 : tensor<4x6xf32>
}

// A group of one has nothing to say.
// CHECK-LABEL: func.func @alone(
// CHECK-NEXT: return %arg0
func.func @alone(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = spmd.all_reduce sum %x over @mesh {"one"} : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// What is sent twice stays two.
// CHECK-LABEL: func.func @apart(
// CHECK: exec.collective broadcast %arg0 over @mesh <{"tp"}> {block = array<i64: 4, 6>} :
// CHECK: exec.collective broadcast %arg0 over @mesh <{"tp"}> {apart = 1 : i64, block = array<i64: 4, 6>} :
func.func @apart(%x: tensor<4x6xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>) {
  %0 = spmd.broadcast %x over @mesh {"tp"} dim 1 part 0 : tensor<4x6xf32> -> tensor<4x6xf32>
  %1 = spmd.broadcast %x over @mesh {"tp"} dim 1 part 0 {apart = 1 : i64} : tensor<4x6xf32> -> tensor<4x6xf32>
  return %0, %1 : tensor<4x6xf32>, tensor<4x6xf32>
}
