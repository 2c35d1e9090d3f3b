// RUN: cleave-opt %s --split-input-file --spmd-widen-sums | FileCheck %s

// A product that is summed over devices is f32 up to its sum.
spmd.mesh @mesh <["tp" = 2]>
// CHECK-LABEL: func.func @product(
// CHECK: %[[Y:.*]] = graph.linear %{{.*}}, %{{.*}} {result_element = f32} : (tensor<4x8xbf16>, tensor<6x8xbf16>) -> tensor<4x6xf32>
// CHECK-NEXT: %[[S:.*]] = spmd.all_reduce sum %[[Y]] {{.*}} : tensor<4x6xf32>
// CHECK-NEXT: %[[Z:.*]] = graph.cast %[[S]] : (tensor<4x6xf32>) -> tensor<4x6xbf16>
// CHECK-NEXT: return %[[Z]]
func.func @product(%x: tensor<4x8xbf16>, %w: tensor<6x8xbf16>) -> tensor<4x6xbf16> {
  %y = graph.linear %x, %w : (tensor<4x8xbf16>, tensor<6x8xbf16>) -> tensor<4x6xbf16>
  %z = spmd.all_reduce sum %y over @mesh {"tp"} : tensor<4x6xbf16>
  return %z : tensor<4x6xbf16>
}

// -----

// So are the terms of a sum of products; what is no product is rounded already.
spmd.mesh @mesh <["tp" = 2]>
// CHECK-LABEL: func.func @sum(
// CHECK-DAG: %[[A:.*]] = graph.contract "bi,io->bo" %{{.*}}, %{{.*}} {result_element = f32}
// CHECK-DAG: %[[R:.*]] = graph.cast %arg2 : (tensor<4x6xbf16>) -> tensor<4x6xf32>
// CHECK: %[[T:.*]] = graph.add %[[A]], %[[R]] : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
// CHECK-NEXT: spmd.all_reduce sum %[[T]] {{.*}} : tensor<4x6xf32>
func.func @sum(%x: tensor<4x8xbf16>, %w: tensor<8x6xbf16>, %r: tensor<4x6xbf16>) -> tensor<4x6xbf16> {
  %y = graph.contract "bi,io->bo" %x, %w : (tensor<4x8xbf16>, tensor<8x6xbf16>) -> tensor<4x6xbf16>
  %t = graph.add %y, %r : (tensor<4x6xbf16>, tensor<4x6xbf16>) -> tensor<4x6xbf16>
  %z = spmd.all_reduce sum %t over @mesh {"tp"} : tensor<4x6xbf16>
  return %z : tensor<4x6xbf16>
}

// -----

// A value that is read elsewhere, too, keeps its type, and so does a maximum.
spmd.mesh @mesh <["tp" = 2]>
// CHECK-LABEL: func.func @kept(
// CHECK: graph.linear %{{.*}} -> tensor<4x6xbf16>
// CHECK: spmd.all_reduce sum %{{.*}} : tensor<4x6xbf16>
// CHECK: graph.linear %{{.*}} -> tensor<4x6xbf16>
// CHECK: spmd.all_reduce max %{{.*}} : tensor<4x6xbf16>
func.func @kept(%x: tensor<4x8xbf16>, %w: tensor<6x8xbf16>, %v: tensor<6x8xbf16>)
    -> (tensor<4x6xbf16>, tensor<4x6xbf16>, tensor<4x6xbf16>) {
  %y = graph.linear %x, %w : (tensor<4x8xbf16>, tensor<6x8xbf16>) -> tensor<4x6xbf16>
  %z = spmd.all_reduce sum %y over @mesh {"tp"} : tensor<4x6xbf16>
  %m = graph.linear %x, %v : (tensor<4x8xbf16>, tensor<6x8xbf16>) -> tensor<4x6xbf16>
  %n = spmd.all_reduce max %m over @mesh {"tp"} : tensor<4x6xbf16>
  return %y, %z, %n : tensor<4x6xbf16>, tensor<4x6xbf16>, tensor<4x6xbf16>
}

// -----

// Of an op with several results all are sums; those that are read as they are
// are rounded behind it.
spmd.mesh @mesh <["cp" = 2]>
// CHECK-LABEL: func.func @attention(
// CHECK: %[[Q:.*]], %[[K:.*]], %[[V:.*]] = graph.attention_grad {{.*}}, result_element = f32
// CHECK-DAG: graph.cast %[[Q]] : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xbf16>
// CHECK-DAG: spmd.all_reduce sum %[[K]] {{.*}} : tensor<1x2x4x8xf32>
// CHECK-DAG: spmd.all_reduce sum %[[V]] {{.*}} : tensor<1x2x4x8xf32>
func.func @attention(%g: tensor<1x2x4x8xbf16>, %q: tensor<1x2x4x8xbf16>, %k: tensor<1x2x4x8xbf16>,
    %v: tensor<1x2x4x8xbf16>, %o: tensor<1x2x4x8xbf16>, %l: tensor<1x2x4xf32>)
    -> (tensor<1x2x4x8xbf16>, tensor<1x2x4x8xbf16>, tensor<1x2x4x8xbf16>) {
  %a, %b, %c = graph.attention_grad %g, %q, %k, %v, %o, %l {causal, scale = 0.25 : f64} : (tensor<1x2x4x8xbf16>, tensor<1x2x4x8xbf16>, tensor<1x2x4x8xbf16>, tensor<1x2x4x8xbf16>, tensor<1x2x4x8xbf16>, tensor<1x2x4xf32>) -> (tensor<1x2x4x8xbf16>, tensor<1x2x4x8xbf16>, tensor<1x2x4x8xbf16>)
  %x = spmd.all_reduce sum %b over @mesh {"cp"} : tensor<1x2x4x8xbf16>
  %y = spmd.all_reduce sum %c over @mesh {"cp"} : tensor<1x2x4x8xbf16>
  return %a, %x, %y : tensor<1x2x4x8xbf16>, tensor<1x2x4x8xbf16>, tensor<1x2x4x8xbf16>
}

// -----

// A gradient has the type in which gradients are asked for, in its sum over
// micro-batches as in that over devices; its parts may be sharded.
spmd.mesh @mesh <["mb" = 2, "dp" = 2]> sequential ["mb"]
// CHECK-LABEL: func.func @gradient(
// CHECK: graph.contract {{.*}} -> tensor<8x6xbf16>
// CHECK-NEXT: spmd.all_reduce sum {{.*}} {"mb"} : tensor<8x6xbf16>
// CHECK-NEXT: spmd.reduce_scatter sum {{.*}} tensor<8x6xbf16> -> tensor<4x6xbf16>
func.func @gradient(%x: tensor<4x8xbf16>, %g: tensor<4x6xbf16>) -> tensor<6x4xbf16> {
  %y = graph.contract "bi,bo->io" %x, %g : (tensor<4x8xbf16>, tensor<4x6xbf16>) -> tensor<8x6xbf16>
  %m = spmd.all_reduce sum %y over @mesh {"mb"} : tensor<8x6xbf16>
  %d = spmd.reduce_scatter sum %m by <@mesh, [{"dp"}, {}]> : tensor<8x6xbf16> -> tensor<4x6xbf16>
  %t = graph.transpose %d {permutation = array<i64: 1, 0>} : (tensor<4x6xbf16>) -> tensor<6x4xbf16>
  %w = graph.gradient %t of "w" : (tensor<6x4xbf16>) -> tensor<6x4xbf16>
  return %w : tensor<6x4xbf16>
}
