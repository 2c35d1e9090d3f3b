// RUN: cleave-opt %s --split-input-file --graph-differentiate --spmd-apply-recipes=mesh=pp=2 --spmd-seed-shardings --spmd-propagate --spmd-partition --pipe-split-stages=machine=flops=1e9,memory=1e15,link=1e15 | FileCheck %s

// The stages would be even between the two contractions of the layer in the
// middle, where 512 elements of a sample cross. Behind that layer, where 256
// do, the slowest stage takes 3 % longer: the second one begins there.

// CHECK-LABEL: func.func private @train.F(
// CHECK-SAME: tensor<8192x256xf32>
// CHECK-COUNT-4: graph.contract
// CHECK-NOT: graph.contract
// CHECK: return
// CHECK-LABEL: func.func private @train.1F(
// CHECK-COUNT-2: graph.contract
// CHECK-NOT: graph.contract
// CHECK-LABEL: func.func private
func.func @loss(%p: tensor<256xf32> {graph.name = "p", graph.role = "parameter"},
                %a: tensor<8192x256xf32> {graph.name = "a", graph.role = "parameter"},
                %b: tensor<256x8192xf32> {graph.name = "b", graph.role = "parameter"},
                %c: tensor<512x256xf32> {graph.name = "c", graph.role = "parameter"},
                %d: tensor<256x512xf32> {graph.name = "d", graph.role = "parameter"},
                %e: tensor<8192x256xf32> {graph.name = "e", graph.role = "parameter"},
                %f: tensor<256x8192xf32> {graph.name = "f", graph.role = "parameter"},
                %x: tensor<8x256xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64})
    -> (tensor<f32> {graph.name = "loss"}) {
  %rows = graph.broadcast %p : (tensor<256xf32>) -> tensor<8x256xf32>
  %0 = graph.add %x, %rows : (tensor<8x256xf32>, tensor<8x256xf32>) -> tensor<8x256xf32>
  %1 = graph.contract "bi,oi->bo" %0, %a : (tensor<8x256xf32>, tensor<8192x256xf32>) -> tensor<8x8192xf32>
  %2 = graph.contract "bi,oi->bo" %1, %b : (tensor<8x8192xf32>, tensor<256x8192xf32>) -> tensor<8x256xf32>
  %3 = graph.contract "bi,oi->bo" %2, %c : (tensor<8x256xf32>, tensor<512x256xf32>) -> tensor<8x512xf32>
  %4 = graph.contract "bi,oi->bo" %3, %d : (tensor<8x512xf32>, tensor<256x512xf32>) -> tensor<8x256xf32>
  %5 = graph.contract "bi,oi->bo" %4, %e : (tensor<8x256xf32>, tensor<8192x256xf32>) -> tensor<8x8192xf32>
  %6 = graph.contract "bi,oi->bo" %5, %f : (tensor<8x8192xf32>, tensor<256x8192xf32>) -> tensor<8x256xf32>
  %7 = graph.mul %6, %6 : (tensor<8x256xf32>, tensor<8x256xf32>) -> tensor<8x256xf32>
  %loss = graph.reduce sum %7 {dims = array<i64: 0, 1>} : (tensor<8x256xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}

// -----

// With outer layers of a quarter of the size it would take 11 % longer: the
// stages are even.

// CHECK-LABEL: func.func private @train.F(
// CHECK-SAME: tensor<2048x256xf32>
// CHECK-COUNT-3: graph.contract
// CHECK-NOT: graph.contract
// CHECK: return {{.*}}tensor<8x512xf32>
// CHECK-LABEL: func.func private @train.1F(
// CHECK-COUNT-3: graph.contract
// CHECK-NOT: graph.contract
// CHECK-LABEL: func.func private
func.func @loss(%p: tensor<256xf32> {graph.name = "p", graph.role = "parameter"},
                %a: tensor<2048x256xf32> {graph.name = "a", graph.role = "parameter"},
                %b: tensor<256x2048xf32> {graph.name = "b", graph.role = "parameter"},
                %c: tensor<512x256xf32> {graph.name = "c", graph.role = "parameter"},
                %d: tensor<256x512xf32> {graph.name = "d", graph.role = "parameter"},
                %e: tensor<2048x256xf32> {graph.name = "e", graph.role = "parameter"},
                %f: tensor<256x2048xf32> {graph.name = "f", graph.role = "parameter"},
                %x: tensor<8x256xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64})
    -> (tensor<f32> {graph.name = "loss"}) {
  %rows = graph.broadcast %p : (tensor<256xf32>) -> tensor<8x256xf32>
  %0 = graph.add %x, %rows : (tensor<8x256xf32>, tensor<8x256xf32>) -> tensor<8x256xf32>
  %1 = graph.contract "bi,oi->bo" %0, %a : (tensor<8x256xf32>, tensor<2048x256xf32>) -> tensor<8x2048xf32>
  %2 = graph.contract "bi,oi->bo" %1, %b : (tensor<8x2048xf32>, tensor<256x2048xf32>) -> tensor<8x256xf32>
  %3 = graph.contract "bi,oi->bo" %2, %c : (tensor<8x256xf32>, tensor<512x256xf32>) -> tensor<8x512xf32>
  %4 = graph.contract "bi,oi->bo" %3, %d : (tensor<8x512xf32>, tensor<256x512xf32>) -> tensor<8x256xf32>
  %5 = graph.contract "bi,oi->bo" %4, %e : (tensor<8x256xf32>, tensor<2048x256xf32>) -> tensor<8x2048xf32>
  %6 = graph.contract "bi,oi->bo" %5, %f : (tensor<8x2048xf32>, tensor<256x2048xf32>) -> tensor<8x256xf32>
  %7 = graph.mul %6, %6 : (tensor<8x256xf32>, tensor<8x256xf32>) -> tensor<8x256xf32>
  %loss = graph.reduce sum %7 {dims = array<i64: 0, 1>} : (tensor<8x256xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
