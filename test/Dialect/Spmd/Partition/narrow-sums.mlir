// RUN: cleave-opt %s --split-input-file --spmd-narrow-sums | FileCheck %s

// Choices of 16 bits are weighed and added up in f32 on each device, and their
// sum is rounded before it is sent.
spmd.mesh @mesh <["tp" = 2]>
// CHECK-LABEL: func.func @choices(
// CHECK: %[[S:.*]] = graph.reduce sum %{{.*}} -> tensor<4x8xf32>
// CHECK: %[[N:.*]] = graph.cast %[[S]] {spmd.global_types = {{.*}}, spmd.of_device, {{.*}} : (tensor<4x8xf32>) -> tensor<4x8xbf16>
// CHECK: %[[R:.*]] = spmd.all_reduce sum %[[N]] {{.*}} : tensor<4x8xbf16>
// CHECK: %[[Z:.*]] = graph.cast %[[R]] {{.*}} : (tensor<4x8xbf16>) -> tensor<4x8xf32>
// CHECK: return %[[Z]]
func.func @choices(
    %y: tensor<4x2x8xbf16> {spmd.global_type = tensor<4x2x8xbf16>, spmd.sharding = #spmd.sharding<@mesh, [{}, {}, {}], partial = {"tp"}>},
    %w: tensor<4x2x1xf32> {spmd.global_type = tensor<4x2x1xf32>, spmd.sharding = #spmd.sharding<@mesh, [{}, {}, {}]>})
    -> tensor<4x8xf32> {
  %0 = graph.cast %y {spmd.global_types = [tensor<4x2x8xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{}, {}, {}], partial = {"tp"}>]} : (tensor<4x2x8xbf16>) -> tensor<4x2x8xf32>
  %1 = graph.mul %0, %w {spmd.global_types = [tensor<4x2x8xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{}, {}, {}], partial = {"tp"}>]} : (tensor<4x2x8xf32>, tensor<4x2x1xf32>) -> tensor<4x2x8xf32>
  %2 = graph.reduce sum %1 {dims = array<i64: 1>, spmd.global_types = [tensor<4x8xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{}, {}], partial = {"tp"}>]} : (tensor<4x2x8xf32>) -> tensor<4x8xf32>
  %3 = spmd.all_reduce sum %2 over @mesh {"tp"} {spmd.global_types = [tensor<4x8xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{}, {}]>]} : tensor<4x8xf32>
  return %3 : tensor<4x8xf32>
}

// -----

// A sum that its own op makes partial, and a term in f32, stay as they are.
spmd.mesh @mesh <["tp" = 2]>
// CHECK-LABEL: func.func @kept(
// CHECK: spmd.all_reduce sum %{{.*}} : tensor<4xf32>
// CHECK: spmd.all_reduce sum %{{.*}} : tensor<4x8xf32>
func.func @kept(
    %x: tensor<4x8xbf16> {spmd.global_type = tensor<4x16xbf16>, spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>},
    %y: tensor<4x8xbf16> {spmd.global_type = tensor<4x8xbf16>, spmd.sharding = #spmd.sharding<@mesh, [{}, {}], partial = {"tp"}>},
    %z: tensor<4x8xf32> {spmd.global_type = tensor<4x8xf32>, spmd.sharding = #spmd.sharding<@mesh, [{}, {}], partial = {"tp"}>})
    -> (tensor<4xf32>, tensor<4x8xf32>) {
  %0 = graph.cast %x {spmd.global_types = [tensor<4x16xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{}, {"tp"}]>]} : (tensor<4x8xbf16>) -> tensor<4x8xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 1>, spmd.global_types = [tensor<4xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{}], partial = {"tp"}>]} : (tensor<4x8xf32>) -> tensor<4xf32>
  %2 = spmd.all_reduce sum %1 over @mesh {"tp"} {spmd.global_types = [tensor<4xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<4xf32>
  %3 = graph.cast %y {spmd.global_types = [tensor<4x8xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{}, {}], partial = {"tp"}>]} : (tensor<4x8xbf16>) -> tensor<4x8xf32>
  %4 = graph.add %3, %z {spmd.global_types = [tensor<4x8xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{}, {}], partial = {"tp"}>]} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %5 = spmd.all_reduce sum %4 over @mesh {"tp"} {spmd.global_types = [tensor<4x8xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{}, {}]>]} : tensor<4x8xf32>
  return %2, %5 : tensor<4xf32>, tensor<4x8xf32>
}

// -----

// Tokens of 16 bits that devices add to places, and what they take from places
// of their own, are rounded, too. So is a matmul that all readers round.
spmd.mesh @mesh <["tp" = 2]>
// CHECK-LABEL: func.func @places(
// CHECK: spmd.reduce_scatter sum %{{.*}} : tensor<6x8xbf16> -> tensor<3x8xbf16>
// CHECK: spmd.all_reduce sum %{{.*}} : tensor<4x8xbf16>
// CHECK: %[[M:.*]] = graph.contract
// CHECK: %[[N:.*]] = graph.cast %[[M]] {{.*}} -> tensor<4x5xbf16>
// CHECK: spmd.all_reduce sum %[[N]] {{.*}} : tensor<4x5xbf16>
// CHECK: %[[K:.*]] = graph.contract
// CHECK: spmd.all_reduce sum %[[K]] {{.*}} : tensor<4x5xf32>
func.func @places(
    %x: tensor<2x8xbf16> {spmd.global_type = tensor<4x8xbf16>, spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
    %p: tensor<2xi64> {spmd.global_type = tensor<4xi64>, spmd.sharding = #spmd.sharding<@mesh, [{"tp"}]>},
    %own: tensor<3x8xbf16> {spmd.global_type = tensor<6x8xbf16>, spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>},
    %all: tensor<4xi64> {spmd.global_type = tensor<4xi64>, spmd.sharding = #spmd.sharding<@mesh, [{}]>},
    %h: tensor<4x3xbf16> {spmd.global_type = tensor<4x6xbf16>, spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>},
    %w: tensor<5x3xbf16> {spmd.global_type = tensor<5x6xbf16>, spmd.sharding = #spmd.sharding<@mesh, [{}, {"tp"}]>})
    -> (tensor<3x8xf32>, tensor<4x8xf32>, tensor<4x5xbf16>, tensor<4x5xf32>) {
  %0 = graph.cast %x {spmd.global_types = [tensor<4x8xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"tp"}, {}]>]} : (tensor<2x8xbf16>) -> tensor<2x8xf32>
  %1 = graph.scatter_add %0, %p {dim = 0 : i64, size = 6 : i64, spmd.global_types = [tensor<6x8xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{}, {}], partial = {"tp"}>]} : (tensor<2x8xf32>, tensor<2xi64>) -> tensor<6x8xf32>
  %2 = spmd.reduce_scatter sum %1 by <@mesh, [{"tp"}, {}]> {spmd.global_types = [tensor<6x8xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"tp"}, {}]>]} : tensor<6x8xf32> -> tensor<3x8xf32>
  %3 = graph.cast %own {spmd.global_types = [tensor<6x8xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{"tp"}, {}]>]} : (tensor<3x8xbf16>) -> tensor<3x8xf32>
  %4 = spmd.shard_offset <@mesh, [{"tp"}]> of tensor<6xi64> {spmd.global_types = [tensor<1xi64>], spmd.shardings = [#spmd.sharding<@mesh, [{}]>]} : tensor<1xi64>
  %5 = graph.gather %3, %all origin %4 {dim = 0 : i64, global_size = 6 : i64, spmd.global_types = [tensor<4x8xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{}, {}], partial = {"tp"}>]} : (tensor<3x8xf32>, tensor<4xi64>, tensor<1xi64>) -> tensor<4x8xf32>
  %6 = spmd.all_reduce sum %5 over @mesh {"tp"} {spmd.global_types = [tensor<4x8xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{}, {}]>]} : tensor<4x8xf32>
  %7 = graph.contract "ab,cb->ac" %h, %w {result_element = f32, spmd.global_types = [tensor<4x5xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{}, {}], partial = {"tp"}>]} : (tensor<4x3xbf16>, tensor<5x3xbf16>) -> tensor<4x5xf32>
  %8 = spmd.all_reduce sum %7 over @mesh {"tp"} {spmd.global_types = [tensor<4x5xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{}, {}]>]} : tensor<4x5xf32>
  %9 = graph.cast %8 {spmd.global_types = [tensor<4x5xbf16>], spmd.shardings = [#spmd.sharding<@mesh, [{}, {}]>]} : (tensor<4x5xf32>) -> tensor<4x5xbf16>
  %10 = graph.contract "ab,cb->ac" %h, %w {result_element = f32, spmd.global_types = [tensor<4x5xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{}, {}], partial = {"tp"}>]} : (tensor<4x3xbf16>, tensor<5x3xbf16>) -> tensor<4x5xf32>
  %11 = spmd.all_reduce sum %10 over @mesh {"tp"} {spmd.global_types = [tensor<4x5xf32>], spmd.shardings = [#spmd.sharding<@mesh, [{}, {}]>]} : tensor<4x5xf32>
  return %2, %6, %9, %11 : tensor<3x8xf32>, tensor<4x8xf32>, tensor<4x5xbf16>, tensor<4x5xf32>
}
