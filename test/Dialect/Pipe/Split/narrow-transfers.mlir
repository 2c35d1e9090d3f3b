// RUN: cleave-opt %s --graph-differentiate --graph-mixed-precision --spmd-apply-recipes=mesh=pp=2 --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-verify --pipe-split-stages=stages=g --pipe-schedule --pipe-verify | FileCheck %s
// RUN: cleave-opt %s --graph-differentiate --graph-mixed-precision --spmd-apply-recipes=mesh=pp=2 --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-verify --pipe-split-stages="stages=g tree-sums" --pipe-schedule --pipe-verify | FileCheck %s --check-prefix=TREE
// RUN: cleave-opt %s --graph-differentiate --graph-mixed-precision=keep-chosen --graph-fp8=history=2 --spmd-apply-recipes=mesh=pp=2 --spmd-seed-shardings=micro-batches=2 --spmd-propagate --spmd-partition --spmd-verify --pipe-split-stages=stages=g --pipe-schedule --pipe-verify | FileCheck %s --check-prefix=TREE

// The second stage begins with a norm, and receives the stream in 16 bits. The
// gradient of the norm reads a copy of it in f32, which the first stage could make as
// well: it stays in the second one. The gradient of the stream is a sum in f32, which
// is rounded to be sent; the stages themselves compute with f32.

// CHECK-LABEL: func.func private @train.F(
// CHECK: return {{.*}}tensor<4x8xbf16>
// CHECK-LABEL: func.func private @train.1B(
// CHECK: %[[N:.*]] = graph.rms_norm_grad {{.*}} -> tensor<4x8xf32>
// CHECK: %[[S:.*]] = graph.add %{{.*}}, %[[N]]
// CHECK: %[[R:.*]] = graph.cast %[[S]] : (tensor<4x8xf32>) -> tensor<4x8xbf16>
// CHECK: return {{.*}}%[[R]]
// CHECK-LABEL: func.func private @train.B(
// CHECK-NOT: graph.rms_norm_grad
// CHECK: return

// Where sums have the order of a tree, bits do not depend on the stages; nor do scales
// of 8 bits.

// TREE-LABEL: func.func private @train.1B(
// TREE: %[[N:.*]] = graph.rms_norm_grad
// TREE: %[[S:.*]] = graph.add %{{.*}}, %[[N]]
// TREE: return {{.*}}%[[S]]
func.func @loss(%a: tensor<8x8xf32> {graph.name = "a", graph.role = "parameter"},
                %g: tensor<8xf32> {graph.name = "g", graph.role = "parameter"},
                %b: tensor<8x8xf32> {graph.name = "h", graph.role = "parameter"},
                %x: tensor<8x8xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64})
    -> (tensor<f32> {graph.name = "loss"}) {
  %0 = graph.contract "bi,oi->bo" %x, %a : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = graph.tanh %0 : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %n, %rstd = graph.rms_norm %1 weight %g {epsilon = 1.0e-05 : f64} : (tensor<8x8xf32>, tensor<8xf32>) -> (tensor<8x8xf32>, tensor<8xf32>)
  %2 = graph.contract "bi,oi->bo" %n, %b : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %3 = graph.add %1, %2 : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %4 = graph.mul %3, %3 : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %loss = graph.reduce sum %4 {dims = array<i64: 0, 1>} : (tensor<8x8xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
