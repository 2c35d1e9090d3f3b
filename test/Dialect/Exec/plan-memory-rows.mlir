// RUN: cleave-compile %s --mesh=ep=2 --plan=expert --optimizer=sgd --momentum=0 --check-finite=off --emit=executable | FileCheck %s

// An expert that all tokens have is computed while rows are on their way to the
// ranks of the experts that were chosen: forward, and its gradient backward. In
// the program it comes behind them.

// CHECK-LABEL: func.func private @train.F(
// CHECK: %[[ROWS:.*]] = exec.all_to_all_rows
// CHECK: %[[UP:.*]] = exec.contract {{.*}} -> tensor<10x16xf32>
// CHECK-NEXT: exec.launch @relu{{.*}}(%[[UP]])
// CHECK: exec.grouped_contract %[[ROWS]]

// CHECK-LABEL: func.func private @train.B(
// CHECK: %[[ROWS:.*]] = exec.all_to_all_rows
// CHECK: exec.contract {{.*}} -> tensor<10x16xf32>
// CHECK: exec.grouped_contract %[[ROWS]]

func.func @loss(
    %x: tensor<4x5x8xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64},
    %in: tensor<8x8xf32> {graph.name = "in", graph.role = "parameter"},
    %up: tensor<4x8x6xf32> {graph.name = "up", graph.role = "parameter"},
    %down: tensor<4x6x8xf32> {graph.name = "down", graph.role = "parameter"},
    %shared_up: tensor<16x8xf32> {graph.name = "shared_up", graph.role = "parameter"},
    %shared_down: tensor<8x16xf32> {graph.name = "shared_down", graph.role = "parameter"},
    %router: tensor<4x8xf32> {graph.name = "router", graph.role = "parameter"}) -> (tensor<f32> {graph.name = "loss"}) {
  %h = graph.linear %x, %in : (tensor<4x5x8xf32>, tensor<8x8xf32>) -> tensor<4x5x8xf32>
  %logits = graph.linear %h, %router : (tensor<4x5x8xf32>, tensor<4x8xf32>) -> tensor<4x5x4xf32>
  %v, %i = graph.top_k %logits {k = 2 : i64} : (tensor<4x5x4xf32>) -> (tensor<4x5x2xf32>, tensor<4x5x2xi64>)
  %r = graph.reshape %h : (tensor<4x5x8xf32>) -> tensor<4x5x1x8xf32>
  %rows = graph.broadcast %r : (tensor<4x5x1x8xf32>) -> tensor<4x5x2x8xf32>
  %0 = graph.grouped_linear %rows, %up, %i : (tensor<4x5x2x8xf32>, tensor<4x8x6xf32>, tensor<4x5x2xi64>) -> tensor<4x5x2x6xf32>
  %2 = graph.relu %0 : (tensor<4x5x2x6xf32>) -> tensor<4x5x2x6xf32>
  %3 = graph.grouped_linear %2, %down, %i : (tensor<4x5x2x6xf32>, tensor<4x6x8xf32>, tensor<4x5x2xi64>) -> tensor<4x5x2x8xf32>
  %w = graph.reshape %v : (tensor<4x5x2xf32>) -> tensor<4x5x2x1xf32>
  %4 = graph.mul %3, %w : (tensor<4x5x2x8xf32>, tensor<4x5x2x1xf32>) -> tensor<4x5x2x8xf32>
  %5 = graph.reduce sum %4 {dims = array<i64: 2>} : (tensor<4x5x2x8xf32>) -> tensor<4x5x8xf32>
  %6 = graph.linear %h, %shared_up : (tensor<4x5x8xf32>, tensor<16x8xf32>) -> tensor<4x5x16xf32>
  %7 = graph.relu %6 : (tensor<4x5x16xf32>) -> tensor<4x5x16xf32>
  %8 = graph.linear %7, %shared_down : (tensor<4x5x16xf32>, tensor<8x16xf32>) -> tensor<4x5x8xf32>
  %9 = graph.add %5, %8 : (tensor<4x5x8xf32>, tensor<4x5x8xf32>) -> tensor<4x5x8xf32>
  %10 = graph.mul %9, %9 : (tensor<4x5x8xf32>, tensor<4x5x8xf32>) -> tensor<4x5x8xf32>
  %11 = graph.reduce sum %10 {dims = array<i64: 0, 1, 2>} : (tensor<4x5x8xf32>) -> tensor<f32>
  return %11 : tensor<f32>
}
