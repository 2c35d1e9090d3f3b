// RUN: cleave-opt %s --pipe-recompute="policy=none" | FileCheck %s --check-prefixes=CHECK,NONE
// RUN: cleave-opt %s --pipe-recompute="policy=full" | FileCheck %s --check-prefixes=CHECK,FULL
// RUN: cleave-opt %s --pipe-recompute="policy='1 full; none'" | FileCheck %s --check-prefixes=CHECK,MIXED
// RUN: cleave-opt %s --pipe-recompute="policy=price=1e13" | FileCheck %s --check-prefixes=CHECK,CHEAP
// RUN: not cleave-opt %s --pipe-recompute="policy=some" 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// RUN: not cleave-opt %s --pipe-recompute="policy='0 full'" 2>&1 | FileCheck %s --check-prefix=COUNT

// Two layers x + gelu(x w) w', between an embedding and a head: the blocks are
// the layers, and what passes between them is x.

// UNKNOWN: recompute: unknown policy 'some'; policies: none, free, selective, full, regions, or several of them with commas
// COUNT: recompute: the number of blocks is not positive, or too large

// CHECK-LABEL: pipe.program @train(
// CHECK-SAME: pipe.saved = [
// NONE-DAG: {block = 0 : i64, bytes = 2048 : i64, line = "recompute-policies.mlir:{{[0-9]+}}", op = "graph.linear", stage = 0 : i64}
// NONE-DAG: {block = 0 : i64, bytes = 2048 : i64, line = "recompute-policies.mlir:{{[0-9]+}}", op = "graph.gelu", stage = 0 : i64}
// NONE-DAG: {block = 1 : i64, bytes = 2048 : i64, line = "recompute-policies.mlir:{{[0-9]+}}", op = "graph.linear", stage = 0 : i64}
// FULL-NOT: op = "graph.gelu"
// FULL: op = "graph.add"
// CHECK-LABEL: func.func private @train.F(

// What is recomputed is in front of the block's own backward.
// CHECK-LABEL: func.func private @train.B(
// NONE-NOT: graph.linear
// FULL: graph.linear
// FULL: graph.gelu_grad
// FULL: graph.linear
// FULL: graph.gelu_grad
// MIXED: graph.gelu_grad
// MIXED: graph.linear
// MIXED: graph.gelu_grad
// CHEAP-NOT: graph.linear
// CHEAP: return
pipe.program @train(%w0: tensor<16x16xf32>, %w1: tensor<32x16xf32>, %w2: tensor<16x32xf32>,
                    %w3: tensor<32x16xf32>, %w4: tensor<16x32xf32>, %i: tensor<32x16xf32>)
    -> (tensor<32x16xf32>, tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x32xf32>)
    attributes {micro_batches = 2 : i64} {
  %0:7 = pipe.invoke @train.F(%w0, %w1, %w2, %w3, %w4, %i) {part = "F", split = array<i64: -1, -1, -1, -1, -1, 0>,
      results = ["saved", "saved", "saved", "saved", "saved", "saved", "saved"]}
      : (tensor<16x16xf32>, tensor<32x16xf32>, tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x32xf32>, tensor<32x16xf32>)
      -> (tensor<16x16xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<16x16xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<16x16xf32>)
  %1:4 = pipe.invoke @train.B(%w2, %w3, %w4, %0#0, %0#1, %0#2, %0#3, %0#4, %0#5, %0#6) {part = "B",
      split = array<i64: -1, -1, -1, -1, -1, -1, -1, -1, -1, -1>, results = ["accumulate", "accumulate", "accumulate", "accumulate"]}
      : (tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x32xf32>, tensor<16x16xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<16x16xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<16x16xf32>)
      -> (tensor<32x16xf32>, tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x32xf32>)
  pipe.return %1#0, %1#1, %1#2, %1#3 : tensor<32x16xf32>, tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x32xf32>
}

func.func private @train.F(%w0: tensor<16x16xf32>, %w1: tensor<32x16xf32>, %w2: tensor<16x32xf32>, %w3: tensor<32x16xf32>,
    %w4: tensor<16x32xf32>, %i: tensor<16x16xf32>)
    -> (tensor<16x16xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<16x16xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<16x16xf32>) {
  %x0 = graph.linear %i, %w0 : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  %u1 = graph.linear %x0, %w1 : (tensor<16x16xf32>, tensor<32x16xf32>) -> tensor<16x32xf32>
  %a1 = graph.gelu %u1 : (tensor<16x32xf32>) -> tensor<16x32xf32>
  %d1 = graph.linear %a1, %w2 : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<16x16xf32>
  %x1 = graph.add %x0, %d1 : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  %u2 = graph.linear %x1, %w3 : (tensor<16x16xf32>, tensor<32x16xf32>) -> tensor<16x32xf32>
  %a2 = graph.gelu %u2 : (tensor<16x32xf32>) -> tensor<16x32xf32>
  %d2 = graph.linear %a2, %w4 : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<16x16xf32>
  %x2 = graph.add %x1, %d2 : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  %y = graph.exp %x2 : (tensor<16x16xf32>) -> tensor<16x16xf32>
  return %x0, %u1, %a1, %x1, %u2, %a2, %y
      : tensor<16x16xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<16x16xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<16x16xf32>
}

func.func private @train.B(%w2: tensor<16x32xf32>, %w3: tensor<32x16xf32>, %w4: tensor<16x32xf32>, %x0: tensor<16x16xf32>,
    %u1: tensor<16x32xf32>, %a1: tensor<16x32xf32>, %x1: tensor<16x16xf32>, %u2: tensor<16x32xf32>, %a2: tensor<16x32xf32>,
    %y: tensor<16x16xf32>) -> (tensor<32x16xf32>, tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x32xf32>) {
  %g4 = graph.contract "bo,bi->oi" %y, %a2 : (tensor<16x16xf32>, tensor<16x32xf32>) -> tensor<16x32xf32>
  %e2 = graph.contract "bo,oi->bi" %y, %w4 : (tensor<16x16xf32>, tensor<16x32xf32>) -> tensor<16x32xf32>
  %h2 = graph.gelu_grad %e2, %u2 : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<16x32xf32>
  %g3 = graph.contract "bo,bi->oi" %h2, %x1 : (tensor<16x32xf32>, tensor<16x16xf32>) -> tensor<32x16xf32>
  %f2 = graph.contract "bo,oi->bi" %h2, %w3 : (tensor<16x32xf32>, tensor<32x16xf32>) -> tensor<16x16xf32>
  %y1 = graph.add %y, %f2 : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  %g2 = graph.contract "bo,bi->oi" %y1, %a1 : (tensor<16x16xf32>, tensor<16x32xf32>) -> tensor<16x32xf32>
  %e1 = graph.contract "bo,oi->bi" %y1, %w2 : (tensor<16x16xf32>, tensor<16x32xf32>) -> tensor<16x32xf32>
  %h1 = graph.gelu_grad %e1, %u1 : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<16x32xf32>
  %g1 = graph.contract "bo,bi->oi" %h1, %x0 : (tensor<16x32xf32>, tensor<16x16xf32>) -> tensor<32x16xf32>
  return %g1, %g2, %g3, %g4 : tensor<32x16xf32>, tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x32xf32>
}
