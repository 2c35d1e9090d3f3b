// RUN: cleave-opt %s --spmd-apply-recipes="mesh=cp=4 recipes=context" | FileCheck %s
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=cp=4 recipes=context" --graph-differentiate --spmd-seed-shardings --spmd-propagate --spmd-partition | FileCheck %s --check-prefix=LOCAL
// RUN: cleave-opt %s --spmd-apply-recipes="mesh=cp=8 recipes=context" | FileCheck %s --check-prefix=SHORT

// The windows of a causal convolution, in a block for each rank: the last three
// places of a block move to the next one.

// CHECK-LABEL: func.func @loss(
// CHECK: %[[X:.*]] = graph.reshape %{{.*}} : (tensor<2x4x1x16xf32>) -> tensor<2x4x1x4x4xf32>
// CHECK: %[[LAST:.*]] = graph.slice %[[X]] {offsets = array<i64: 0, 0, 0, 0, 1>, sizes = array<i64: 2, 4, 1, 4, 3>
// CHECK: %[[OTHERS:.*]] = graph.slice %[[LAST]] {offsets = array<i64: 0, 0, 0, 0, 0>, sizes = array<i64: 2, 4, 1, 3, 3>
// CHECK: %[[HALO:.*]] = graph.pad %[[OTHERS]] {{.*}}low = array<i64: 0, 0, 0, 1, 0>
// CHECK: graph.concat %[[HALO]], %[[X]] {dim = 4
// CHECK-COUNT-4: graph.slice {{.*}}sizes = array<i64: 2, 4, 1, 4, 4>
// CHECK-NOT: graph.patches

// A rank gathers these places alone, and of the gradient likewise.

// LOCAL-LABEL: func.func @train(
// LOCAL-COUNT-2: spmd.all_gather {{.*}} : tensor<2x4x1x1x3xf32> -> tensor<2x4x1x4x3xf32>
// LOCAL-NOT: spmd.all_gather

// Two places for each rank are fewer than windows reach back.

// SHORT: graph.patches

func.func @loss(
    %ids: tensor<2x16xi64> {graph.name = "ids", graph.role = "input", graph.batch_dim = 0 : i64},
    %table: tensor<8x4xf32> {graph.name = "table", graph.role = "parameter"},
    %taps: tensor<4x1x1x1x4xf32> {graph.name = "taps", graph.role = "parameter"}) -> (tensor<f32> {graph.name = "loss"}) {
  %x = graph.gather %table, %ids {dim = 0 : i64} : (tensor<8x4xf32>, tensor<2x16xi64>) -> tensor<2x16x4xf32>
  %t = graph.transpose %x {permutation = array<i64: 0, 2, 1>} : (tensor<2x16x4xf32>) -> tensor<2x4x16xf32>
  %image = graph.reshape %t : (tensor<2x4x16xf32>) -> tensor<2x4x1x16xf32>
  %padded = graph.pad %image {value = 0.0 : f64, low = array<i64: 0, 0, 0, 3>, high = array<i64: 0, 0, 0, 0>, interior = array<i64: 0, 0, 0, 0>} : (tensor<2x4x1x16xf32>) -> tensor<2x4x1x19xf32>
  %rows = graph.patches %padded {kernel = array<i64: 1, 4>, stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>} : (tensor<2x4x1x19xf32>) -> tensor<2x1x16x4x1x4xf32>
  %groups = graph.reshape %rows : (tensor<2x1x16x4x1x4xf32>) -> tensor<2x1x16x4x1x1x4xf32>
  %y = graph.contract "nhwgcij,gocij->ngohw" %groups, %taps : (tensor<2x1x16x4x1x1x4xf32>, tensor<4x1x1x1x4xf32>) -> tensor<2x4x1x1x16xf32>
  %z = graph.mul %y, %y : (tensor<2x4x1x1x16xf32>, tensor<2x4x1x1x16xf32>) -> tensor<2x4x1x1x16xf32>
  %l = graph.reduce sum %z {dims = array<i64: 0, 1, 2, 3, 4>} : (tensor<2x4x1x1x16xf32>) -> tensor<f32>
  return %l : tensor<f32>
}
