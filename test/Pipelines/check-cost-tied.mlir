// Two stages of one pipeline position hold a tied table: they reduce its gradient once.

// RUN: cleave-compile %s --mesh=pp=2,dp=2 --micro-batches=4 --schedule=zb-v --stages=up1,up2,up3 --check-cost --explain=cost --plan-only | FileCheck %s
// RUN: cleave-compile %s --mesh=pp=2,dp=2 --plan=zero1 --micro-batches=4 --schedule=zb-v --stages=up1,up2,up3 --check-cost --explain=cost --plan-only | FileCheck %s --check-prefix=ZERO
// CHECK: all_reduce over "dp": form 36.0 KiB, plan 36.0 KiB, ratio 1.000 (gradients)
// ZERO: reduce_scatter over "dp": form 18.0 KiB, plan 18.0 KiB, ratio 1.000 (gradients, to shards)

// The last stage reads what the first one has reduced.
// RUN: cleave-compile %s --mesh=pp=2,dp=2 --micro-batches=4 --schedule=zb-v --stages=up1,up2,up3 --emit=scheduled | FileCheck %s --check-prefix=PARTS
// PARTS: %[[R:.*]]:{{[0-9]+}} = pipe.invoke @train.R({{.*}}) {part = "R", once
// PARTS: pipe.invoke @train.3U({{.*}}%[[R]]#
// PARTS-LABEL: func.func private @train.3R(
// PARTS-COUNT-2: spmd.all_reduce
// PARTS-NOT: spmd.all_reduce
// PARTS: return

// At positions of their own each reduces it, as both update the table.
// RUN: cleave-compile %s --mesh=pp=4,dp=2 --micro-batches=4 --stages=up1,up2,up3 --check-cost --explain=cost --plan-only | FileCheck %s --check-prefix=APART
// APART: all_reduce over "dp": form 40.0 KiB, plan 40.0 KiB, ratio 1.000
func.func @loss(
    %table: tensor<64x16xf32> {graph.name = "table", graph.role = "parameter"},
    %up0: tensor<64x16xf32> {graph.name = "up0", graph.role = "parameter"},
    %down0: tensor<16x64xf32> {graph.name = "down0", graph.role = "parameter"},
    %up1: tensor<64x16xf32> {graph.name = "up1", graph.role = "parameter"},
    %down1: tensor<16x64xf32> {graph.name = "down1", graph.role = "parameter"},
    %up2: tensor<64x16xf32> {graph.name = "up2", graph.role = "parameter"},
    %down2: tensor<16x64xf32> {graph.name = "down2", graph.role = "parameter"},
    %up3: tensor<64x16xf32> {graph.name = "up3", graph.role = "parameter"},
    %down3: tensor<16x64xf32> {graph.name = "down3", graph.role = "parameter"},
    %ids: tensor<8x32xi64> {graph.name = "ids", graph.role = "input", graph.batch_dim = 0 : i64},
    %labels: tensor<8x32xi64> {graph.name = "labels", graph.role = "input", graph.batch_dim = 0 : i64}) -> (tensor<f32> {graph.name = "loss"}) {
  %x = graph.gather %table, %ids {dim = 0 : i64} : (tensor<64x16xf32>, tensor<8x32xi64>) -> tensor<8x32x16xf32>
  %u0 = graph.linear %x, %up0 : (tensor<8x32x16xf32>, tensor<64x16xf32>) -> tensor<8x32x64xf32>
  %w0 = graph.relu %u0 : (tensor<8x32x64xf32>) -> tensor<8x32x64xf32>
  %d0 = graph.linear %w0, %down0 : (tensor<8x32x64xf32>, tensor<16x64xf32>) -> tensor<8x32x16xf32>
  %x1 = graph.add %x, %d0 : (tensor<8x32x16xf32>, tensor<8x32x16xf32>) -> tensor<8x32x16xf32>
  %u1 = graph.linear %x1, %up1 : (tensor<8x32x16xf32>, tensor<64x16xf32>) -> tensor<8x32x64xf32>
  %w1 = graph.relu %u1 : (tensor<8x32x64xf32>) -> tensor<8x32x64xf32>
  %d1 = graph.linear %w1, %down1 : (tensor<8x32x64xf32>, tensor<16x64xf32>) -> tensor<8x32x16xf32>
  %x2 = graph.add %x1, %d1 : (tensor<8x32x16xf32>, tensor<8x32x16xf32>) -> tensor<8x32x16xf32>
  %u2 = graph.linear %x2, %up2 : (tensor<8x32x16xf32>, tensor<64x16xf32>) -> tensor<8x32x64xf32>
  %w2 = graph.relu %u2 : (tensor<8x32x64xf32>) -> tensor<8x32x64xf32>
  %d2 = graph.linear %w2, %down2 : (tensor<8x32x64xf32>, tensor<16x64xf32>) -> tensor<8x32x16xf32>
  %x3 = graph.add %x2, %d2 : (tensor<8x32x16xf32>, tensor<8x32x16xf32>) -> tensor<8x32x16xf32>
  %u3 = graph.linear %x3, %up3 : (tensor<8x32x16xf32>, tensor<64x16xf32>) -> tensor<8x32x64xf32>
  %w3 = graph.relu %u3 : (tensor<8x32x64xf32>) -> tensor<8x32x64xf32>
  %d3 = graph.linear %w3, %down3 : (tensor<8x32x64xf32>, tensor<16x64xf32>) -> tensor<8x32x16xf32>
  %x4 = graph.add %x3, %d3 : (tensor<8x32x16xf32>, tensor<8x32x16xf32>) -> tensor<8x32x16xf32>
  %l = graph.linear %x4, %table : (tensor<8x32x16xf32>, tensor<64x16xf32>) -> tensor<8x32x64xf32>
  %rows, %lse = graph.cross_entropy %l, %labels : (tensor<8x32x64xf32>, tensor<8x32xi64>) -> (tensor<8x32xf32>, tensor<8x32xf32>)
  %sum = graph.reduce sum %rows {dims = array<i64: 0, 1>} : (tensor<8x32xf32>) -> tensor<f32>
  return %sum : tensor<f32>
}
