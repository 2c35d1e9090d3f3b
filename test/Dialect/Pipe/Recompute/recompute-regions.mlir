// RUN: cleave-opt %s --pipe-recompute | FileCheck %s --check-prefixes=CHECK,REGIONS
// RUN: cleave-opt %s --pipe-recompute="policy=regions" | FileCheck %s --check-prefixes=CHECK,REGIONS
// RUN: cleave-opt %s --pipe-recompute="policy=free" | FileCheck %s
// RUN: cleave-opt %s --pipe-recompute="policy=none" | FileCheck %s

// The first of two layers x + (x w) w' is in a region of torch.utils.checkpoint:
// its inner product is computed again from what the region reads, and the sum,
// which is read outside of it, is saved. The second layer has the same form and
// is in no region.

// CHECK-LABEL: pipe.program @train(
// REGIONS-SAME: pipe.recomputed = [{bytes = 2048 : i64, line = "model.py:12", op = "graph.linear", ops = 1 : i64}]
// CHECK-SAME: pipe.saved = [
// REGIONS-SAME: {block = 0 : i64, bytes = 1024 : i64, line = "model.py:12", op = "graph.add", stage = 0 : i64}
// CHECK-LABEL: func.func private @train.F(
// CHECK-LABEL: func.func private @train.B(
// REGIONS: graph.linear
// CHECK-NOT: graph.linear
// CHECK: return
pipe.program @train(%w0: tensor<16x16xf32>, %w1: tensor<32x16xf32>, %w2: tensor<16x32xf32>,
                    %w3: tensor<32x16xf32>, %w4: tensor<16x32xf32>, %i: tensor<32x16xf32>)
    -> (tensor<16x32xf32>, tensor<16x32xf32>, tensor<16x16xf32>)
    attributes {micro_batches = 2 : i64} {
  %0:5 = pipe.invoke @train.F(%w0, %w1, %w2, %w3, %w4, %i) {part = "F", split = array<i64: -1, -1, -1, -1, -1, 0>,
      results = ["saved", "saved", "saved", "saved", "saved"]}
      : (tensor<16x16xf32>, tensor<32x16xf32>, tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x32xf32>, tensor<32x16xf32>)
      -> (tensor<16x16xf32>, tensor<16x32xf32>, tensor<16x16xf32>, tensor<16x32xf32>, tensor<16x16xf32>)
  %1:3 = pipe.invoke @train.B(%0#0, %0#1, %0#2, %0#3, %0#4) {part = "B",
      split = array<i64: -1, -1, -1, -1, -1>, results = ["accumulate", "accumulate", "accumulate"]}
      : (tensor<16x16xf32>, tensor<16x32xf32>, tensor<16x16xf32>, tensor<16x32xf32>, tensor<16x16xf32>)
      -> (tensor<16x32xf32>, tensor<16x32xf32>, tensor<16x16xf32>)
  pipe.return %1#0, %1#1, %1#2 : tensor<16x32xf32>, tensor<16x32xf32>, tensor<16x16xf32>
}

func.func private @train.F(%w0: tensor<16x16xf32>, %w1: tensor<32x16xf32>, %w2: tensor<16x32xf32>, %w3: tensor<32x16xf32>,
    %w4: tensor<16x32xf32>, %i: tensor<16x16xf32>)
    -> (tensor<16x16xf32>, tensor<16x32xf32>, tensor<16x16xf32>, tensor<16x32xf32>, tensor<16x16xf32>) {
  %x0 = graph.linear %i, %w0 : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  %u1 = graph.linear %x0, %w1 : (tensor<16x16xf32>, tensor<32x16xf32>) -> tensor<16x32xf32> loc(#inside)
  %d1 = graph.linear %u1, %w2 : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<16x16xf32> loc(#inside)
  %x1 = graph.add %x0, %d1 : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32> loc(#inside)
  %u2 = graph.linear %x1, %w3 : (tensor<16x16xf32>, tensor<32x16xf32>) -> tensor<16x32xf32>
  %d2 = graph.linear %u2, %w4 : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<16x16xf32>
  %x2 = graph.add %x1, %d2 : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  return %x0, %u1, %x1, %u2, %x2 : tensor<16x16xf32>, tensor<16x32xf32>, tensor<16x16xf32>, tensor<16x32xf32>, tensor<16x16xf32>
}

func.func private @train.B(%x0: tensor<16x16xf32>, %u1: tensor<16x32xf32>, %x1: tensor<16x16xf32>, %u2: tensor<16x32xf32>,
    %x2: tensor<16x16xf32>) -> (tensor<16x32xf32>, tensor<16x32xf32>, tensor<16x16xf32>) {
  %g2 = graph.contract "bo,bi->oi" %x2, %u2 : (tensor<16x16xf32>, tensor<16x32xf32>) -> tensor<16x32xf32>
  %g1 = graph.contract "bo,bi->oi" %x1, %u1 : (tensor<16x16xf32>, tensor<16x32xf32>) -> tensor<16x32xf32>
  %g0 = graph.contract "bo,bi->oi" %x0, %x0 : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  return %g2, %g1, %g0 : tensor<16x32xf32>, tensor<16x32xf32>, tensor<16x16xf32>
}

#line = loc("model.py":12:5)
#inside = loc("graph.checkpoint 7"(#line))
