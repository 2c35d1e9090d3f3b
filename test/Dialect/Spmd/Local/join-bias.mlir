// RUN: cleave-opt %s --spmd-join-bias=heads | FileCheck %s
// RUN: cleave-opt %s --spmd-join-bias | FileCheck %s --check-prefix=PLAIN

spmd.mesh @mesh <["dp" = 2, "tp" = 2]>

// CHECK-LABEL: func.func @vector(
// CHECK: %[[Y:.*]] = graph.linear %{{.*}}, %{{.*}} bias %{{.*}} {
// CHECK-NEXT: return %[[Y]]
func.func @vector(%x: tensor<8x4xbf16>, %w: tensor<6x4xbf16>, %b: tensor<6xbf16>) -> tensor<8x6xbf16> {
  %0 = graph.linear %x, %w {spmd.global_types = [tensor<16x6xbf16>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}, {}]>]} : (tensor<8x4xbf16>, tensor<6x4xbf16>) -> tensor<8x6xbf16>
  %1 = graph.add %b, %0 {spmd.global_types = [tensor<16x6xbf16>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}, {}]>]} : (tensor<6xbf16>, tensor<8x6xbf16>) -> tensor<8x6xbf16>
  return %1 : tensor<8x6xbf16>
}

// Not where devices have terms of the product, where it has another reader, or
// where what is added is no vector.
// CHECK-LABEL: func.func @apart(
// CHECK-NOT: bias
func.func @apart(%x: tensor<8x4xbf16>, %w: tensor<6x4xbf16>, %b: tensor<6xbf16>, %m: tensor<8x6xbf16>)
    -> (tensor<8x6xbf16>, tensor<8x6xbf16>, tensor<8x6xbf16>, tensor<8x6xbf16>) {
  %0 = graph.linear %x, %w {spmd.global_types = [tensor<8x6xbf16>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}, {}], partial = {"tp"}>]} : (tensor<8x4xbf16>, tensor<6x4xbf16>) -> tensor<8x6xbf16>
  %1 = graph.add %0, %b {spmd.global_types = [tensor<8x6xbf16>],
      spmd.shardings = [#spmd.sharding<@mesh, [{}, {}], partial = {"tp"}>]} : (tensor<8x6xbf16>, tensor<6xbf16>) -> tensor<8x6xbf16>
  %2 = graph.linear %x, %w : (tensor<8x4xbf16>, tensor<6x4xbf16>) -> tensor<8x6xbf16>
  %3 = graph.add %2, %b : (tensor<8x6xbf16>, tensor<6xbf16>) -> tensor<8x6xbf16>
  %4 = graph.linear %x, %w : (tensor<8x4xbf16>, tensor<6x4xbf16>) -> tensor<8x6xbf16>
  %5 = graph.add %4, %m : (tensor<8x6xbf16>, tensor<8x6xbf16>) -> tensor<8x6xbf16>
  return %1, %2, %3, %5 : tensor<8x6xbf16>, tensor<8x6xbf16>, tensor<8x6xbf16>, tensor<8x6xbf16>
}

// Heads over "tp", whose bias is added in f32.
// CHECK-LABEL: func.func @heads(
// CHECK-SAME: %[[X:.*]]: tensor<2x8x4xbf16>, %[[W:.*]]: tensor<3x5x4xbf16> {{.*}}, %[[B:.*]]: tensor<3x5xf32>
// CHECK: %[[M:.*]] = graph.reshape %[[W]] {spmd.global_types = [tensor<30x4xbf16>], spmd.shardings = [#spmd.sharding<@mesh, [{"tp"}, {}]>]}
// CHECK: %[[N:.*]] = graph.cast %[[B]] {{.*}} -> tensor<3x5xbf16>
// CHECK: %[[V:.*]] = graph.reshape %[[N]] {spmd.global_types = [tensor<30xbf16>], spmd.shardings = [#spmd.sharding<@mesh, [{"tp"}]>]}
// CHECK: %[[Y:.*]] = graph.linear %[[X]], %[[M]] bias %[[V]] {spmd.global_types = [tensor<4x8x30xbf16>], spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}, {}, {"tp"}]>]}
// CHECK: %[[H:.*]] = graph.reshape %[[Y]] {{.*}} -> tensor<2x8x3x5xbf16>
// CHECK-NEXT: return %[[H]]
// PLAIN-LABEL: func.func @heads(
// PLAIN: graph.contract
// PLAIN: graph.add
func.func @heads(%x: tensor<2x8x4xbf16>,
    %w: tensor<3x5x4xbf16> {spmd.global_type = tensor<6x5x4xbf16>, spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}, {}]>},
    %b: tensor<3x5xf32> {spmd.global_type = tensor<6x5xf32>, spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>})
    -> tensor<2x8x3x5xbf16> {
  %0 = graph.contract "abi,hdi->abhd" %x, %w {spmd.global_types = [tensor<4x8x6x5xbf16>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}, {}, {"tp"}, {}]>]} : (tensor<2x8x4xbf16>, tensor<3x5x4xbf16>) -> tensor<2x8x3x5xbf16>
  %1 = graph.cast %0 {spmd.global_types = [tensor<4x8x6x5xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}, {}, {"tp"}, {}]>]} : (tensor<2x8x3x5xbf16>) -> tensor<2x8x3x5xf32>
  %2 = graph.add %1, %b {spmd.global_types = [tensor<4x8x6x5xf32>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}, {}, {"tp"}, {}]>]} : (tensor<2x8x3x5xf32>, tensor<3x5xf32>) -> tensor<2x8x3x5xf32>
  %3 = graph.cast %2 {spmd.global_types = [tensor<4x8x6x5xbf16>],
      spmd.shardings = [#spmd.sharding<@mesh, [{"dp"}, {}, {"tp"}, {}]>]} : (tensor<2x8x3x5xf32>) -> tensor<2x8x3x5xbf16>
  return %3 : tensor<2x8x3x5xbf16>
}
