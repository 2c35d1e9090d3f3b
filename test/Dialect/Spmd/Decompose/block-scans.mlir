// RUN: cleave-opt %s --split-input-file --graph-differentiate --spmd-apply-recipes="mesh=cp=2 recipes=context" 2>/dev/null | FileCheck %s
// RUN: cleave-opt %s --split-input-file --graph-differentiate --spmd-apply-recipes="mesh=cp=2 recipes=context" --spmd-pad --spmd-seed-shardings --spmd-propagate --spmd-partition 2>/dev/null | FileCheck %s --check-prefix=LOCAL
// RUN: cleave-opt %s --split-input-file --graph-differentiate --spmd-apply-recipes="mesh=cp=2 recipes=context" -o %t 2>&1 | FileCheck %s --check-prefix=REMARK

// A recurrence along the sequence: each block begins with zero, and what the
// state before it adds follows by the share of it that is left. The ranks of two
// blocks gather one state and one share for each sample.

// CHECK-LABEL: func.func @train(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<4x8xf32>
// CHECK-SAME: [{}, {"cp"}]
// CHECK: %[[A:.*]] = graph.reshape %{{.*}} -> tensor<4x2x4xf32>
// CHECK: %[[OWN:.*]] = graph.linear_scan %[[A]], %{{.*}} {dim = 2 : i64} : (tensor<4x2x4xf32>
// CHECK: %[[LEFT:.*]] = graph.linear_scan %[[A]], %{{.*}} {dim = 2 : i64} : (tensor<4x2x4xf32>
// CHECK: %[[STATES:.*]] = graph.linear_scan %{{.*}}, %{{.*}} {dim = 1 : i64} : (tensor<4x2x1xf32>
// CHECK: %[[BEFORE:.*]] = graph.pad
// CHECK: %[[ADDED:.*]] = graph.mul %[[LEFT]], %[[BEFORE]]
// CHECK: %[[H:.*]] = graph.add %[[OWN]], %[[ADDED]]
// CHECK: graph.reshape %[[H]] : (tensor<4x2x4xf32>) -> tensor<4x8xf32>
// CHECK: graph.linear_scan %{{.*}}, %{{.*}} {dim = 2 : i64, reverse} : (tensor<4x2x4xf32>
// LOCAL-LABEL: func.func @train(
// LOCAL: spmd.all_gather {{.*}} -> tensor<4x2x1xf32>
// LOCAL-NOT: spmd.all_gather {{.*}} -> tensor<4x8xf32>
// LOCAL-NOT: spmd.all_gather {{.*}} -> tensor<4x2x4xf32>
// LOCAL: return
func.func @loss(%x: tensor<4x8xf32> {graph.name = "x", graph.role = "input"},
                %w: tensor<f32> {graph.name = "w", graph.role = "parameter"}) -> tensor<f32> {
  %a = graph.mul %x, %w : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  %h = graph.linear_scan %a, %x {dim = 1 : i64} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %l = graph.reduce sum %h {dims = array<i64: 0, 1>} : (tensor<4x8xf32>) -> tensor<f32>
  return %l : tensor<f32>
}

// -----

// REMARK: remark: recurrence of 7 places, which are not divisible by the 2 positions of axis "cp": its operands are gathered over it
func.func @loss(%x: tensor<4x7xf32> {graph.name = "x", graph.role = "input"},
                %w: tensor<f32> {graph.name = "w", graph.role = "parameter"}) -> tensor<f32> {
  %a = graph.mul %x, %w : (tensor<4x7xf32>, tensor<f32>) -> tensor<4x7xf32>
  %h = graph.linear_scan %a, %x {dim = 1 : i64} : (tensor<4x7xf32>, tensor<4x7xf32>) -> tensor<4x7xf32>
  %l = graph.reduce sum %h {dims = array<i64: 0, 1>} : (tensor<4x7xf32>) -> tensor<f32>
  return %l : tensor<f32>
}
