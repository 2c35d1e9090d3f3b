// RUN: cleave-opt %s --split-input-file --spmd-verify | FileCheck %s

spmd.mesh @mesh <["mb" = 4, "one" = 1]> sequential ["mb"]

// Every micro-batch has one sample: dimensions of one element are split too.
// CHECK-LABEL: func.func @f(
func.func @f(
    %x: tensor<1x3xf32> {spmd.global_type = tensor<4x3xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"mb"}, {}]>})
    -> (tensor<f32> {spmd.global_type = tensor<f32>, spmd.sharding = #spmd.sharding<@mesh, []>}) {
  %0 = graph.reduce sum %x {dims = array<i64: 0, 1>, spmd.global_types = [tensor<f32>],
      spmd.shardings = [#spmd.sharding<@mesh, [], partial = {"mb"}>]} : (tensor<1x3xf32>) -> tensor<f32>
  %1 = spmd.all_reduce sum %0 over @mesh {"mb"} {spmd.global_types = [tensor<f32>],
      spmd.shardings = [#spmd.sharding<@mesh, []>]} : tensor<f32>
  %2 = graph.exp %1 {spmd.global_types = [tensor<f32>], spmd.shardings = [#spmd.sharding<@mesh, []>]}
      : (tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// Partial over an axis of size 1 is whole.
// CHECK-LABEL: func.func @one(
func.func @one(
    %x: tensor<4xf32> {spmd.global_type = tensor<4xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"one"}]>})
    -> (tensor<f32> {spmd.global_type = tensor<f32>, spmd.sharding = #spmd.sharding<@mesh, []>}) {
  %0 = graph.reduce sum %x {dims = array<i64: 0>, spmd.global_types = [tensor<f32>],
      spmd.shardings = [#spmd.sharding<@mesh, [], partial = {"one"}>]} : (tensor<4xf32>) -> tensor<f32>
  %1 = graph.exp %0 {spmd.global_types = [tensor<f32>], spmd.shardings = [#spmd.sharding<@mesh, []>]}
      : (tensor<f32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// -----

// Digits in which a value is partial may be written apart, and cross those of what
// reduces them.
spmd.mesh @mesh <["a" = 6]>
// CHECK-LABEL: func.func @written_apart(
func.func @written_apart(%x: tensor<1x12xf32> {spmd.global_type = tensor<6x12xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"a"}, {}]>})
    -> (tensor<2xf32> {spmd.global_type = tensor<12xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"a":(2)3, "a":(1)2}]>}) {
  %0 = graph.reduce max %x {dims = array<i64: 0>, spmd.global_types = [tensor<12xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {max "a":(1)3, max "a":(3)2}>]} : (tensor<1x12xf32>) -> tensor<12xf32>
  // CHECK: spmd.reduce_scatter max
  %1 = spmd.reduce_scatter max %0 by <@mesh, [{"a":(2)3, "a":(1)2}]> {spmd.global_types = [tensor<12xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"a":(2)3, "a":(1)2}]>]} : tensor<12xf32> -> tensor<2xf32>
  return %1 : tensor<2xf32>
}

// -----

// A condition that is the same at each position of a ring meets what was rotated
// around it.
spmd.mesh @mesh <["a" = 2, "x" = 2]>
// CHECK-LABEL: func.func @whole_on_the_ring(
func.func @whole_on_the_ring(
    %c: tensor<2x1xi1> {spmd.global_type = tensor<4x1xi1>, spmd.sharding = #spmd.sharding<@mesh, [{"a"}, {}]>},
    %x: tensor<2x4xf32> {spmd.global_type = tensor<4x8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"a"}, {"x"}]>})
    -> (tensor<2x4xf32> {spmd.global_type = tensor<4x8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"a"}, {"x"}]>}) {
  %0 = graph.constant {spmd.global_types = [tensor<f32>], spmd.shardings = [#spmd.sharding<@mesh, []>]} dense<0.0> : tensor<f32>
  // CHECK: spmd.rotate
  %1 = spmd.rotate %x over @mesh {"x"} dim 1 {spmd.global_types = [tensor<4x8xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"a"}, {"x"}]>]} : tensor<2x4xf32>
  // CHECK: graph.select
  %2 = graph.select %c, %1, %0 {spmd.global_types = [tensor<4x8xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"a"}, {"x"}]>]} : (tensor<2x1xi1>, tensor<2x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  %3 = spmd.rotate %2 over @mesh {"x"} dim 1 {spmd.global_types = [tensor<4x8xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"a"}, {"x"}]>]} : tensor<2x4xf32>
  return %3 : tensor<2x4xf32>
}
