// RUN: cleave-opt %s --pipe-recompute="policy=full" | FileCheck %s --check-prefixes=CHECK,FULL
// RUN: cleave-opt %s --pipe-recompute="policy=none" | FileCheck %s --check-prefixes=CHECK,NONE

// Two layers x + gelu(gather(x) w) w', whose backward is in two parts. The
// first one gathers and multiplies again. Matmuls of the second one read some of
// that, which is saved for it, beside the gradients. Without recomputation both read
// what forward saves.
spmd.mesh @mesh <["tp" = 2]>

// CHECK-LABEL: pipe.program @train(
// FULL: %[[F:.*]]:3 = pipe.invoke @train.F(
// FULL: %[[I:.*]]:7 = pipe.invoke @train.I(
// FULL: pipe.invoke @train.W(%[[I]]#{{[0-9]}}, %[[I]]#{{[0-9]}}, %[[I]]#{{[0-9]}}, %[[I]]#{{[0-9]}}, %[[I]]#{{[0-9]}}, %[[I]]#{{[0-9]}}, %[[I]]#{{[0-9]}}, %[[F]]#2)
// NONE: %[[F:.*]]:7 = pipe.invoke @train.F(
// NONE: %[[I:.*]]:3 = pipe.invoke @train.I(
// NONE: pipe.invoke @train.W({{.*}}%[[F]]#0

// CHECK-LABEL: func.func private @train.I(
// FULL: spmd.all_gather
// FULL: %[[U2:.*]] = graph.linear {{.*}}graph.clone
// FULL: spmd.all_gather
// FULL: %[[U1:.*]] = graph.linear {{.*}}graph.clone
// FULL-DAG: graph.gelu %[[U1]]
// FULL-DAG: graph.gelu %[[U2]]
// NONE-NOT: spmd.all_gather
// NONE-NOT: graph.linear
// CHECK: return

// CHECK-LABEL: func.func private @train.W(
// FULL-NOT: spmd.all_gather
// FULL-NOT: graph.linear
// FULL-NOT: graph.gelu
// NONE-COUNT-2: spmd.all_gather
// CHECK: return
pipe.program @train(%w0: tensor<16x16xf32>, %w1: tensor<32x16xf32>, %w2: tensor<16x32xf32>,
                    %w3: tensor<32x16xf32>, %w4: tensor<16x32xf32>, %i: tensor<8x16xf32>)
    -> (tensor<32x16xf32>, tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x32xf32>)
    attributes {micro_batches = 2 : i64} {
  %0:7 = pipe.invoke @train.F(%w0, %w1, %w2, %w3, %w4, %i) {part = "F", split = array<i64: -1, -1, -1, -1, -1, 0>,
      results = ["saved", "saved", "saved", "saved", "saved", "saved", "saved"]}
      : (tensor<16x16xf32>, tensor<32x16xf32>, tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x32xf32>, tensor<8x16xf32>)
      -> (tensor<4x16xf32>, tensor<8x32xf32>, tensor<8x32xf32>, tensor<4x16xf32>, tensor<8x32xf32>, tensor<8x32xf32>, tensor<8x16xf32>)
  %1:3 = pipe.invoke @train.I(%w2, %w3, %w4, %0#1, %0#4, %0#6) {part = "I", split = array<i64: -1, -1, -1, -1, -1, -1>,
      results = ["saved", "saved", "saved"]}
      : (tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x32xf32>, tensor<8x32xf32>, tensor<8x32xf32>, tensor<8x16xf32>)
      -> (tensor<8x32xf32>, tensor<8x16xf32>, tensor<8x32xf32>)
  %2:4 = pipe.invoke @train.W(%0#0, %0#2, %0#3, %0#5, %0#6, %1#0, %1#1, %1#2) {part = "W",
      split = array<i64: -1, -1, -1, -1, -1, -1, -1, -1>, results = ["accumulate", "accumulate", "accumulate", "accumulate"]}
      : (tensor<4x16xf32>, tensor<8x32xf32>, tensor<4x16xf32>, tensor<8x32xf32>, tensor<8x16xf32>, tensor<8x32xf32>, tensor<8x16xf32>, tensor<8x32xf32>)
      -> (tensor<32x16xf32>, tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x32xf32>)
  pipe.return %2#0, %2#1, %2#2, %2#3 : tensor<32x16xf32>, tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x32xf32>
}

func.func private @train.F(%w0: tensor<16x16xf32>, %w1: tensor<32x16xf32>, %w2: tensor<16x32xf32>, %w3: tensor<32x16xf32>, %w4: tensor<16x32xf32>,
    %i: tensor<4x16xf32>)
    -> (tensor<4x16xf32>, tensor<8x32xf32>, tensor<8x32xf32>, tensor<4x16xf32>, tensor<8x32xf32>, tensor<8x32xf32>, tensor<8x16xf32>) {
  %x0 = graph.linear %i, %w0 : (tensor<4x16xf32>, tensor<16x16xf32>) -> tensor<4x16xf32>
  %n1 = spmd.all_gather %x0 by <@mesh, [{"tp"}, {}]> : tensor<4x16xf32> -> tensor<8x16xf32>
  %u1 = graph.linear %n1, %w1 : (tensor<8x16xf32>, tensor<32x16xf32>) -> tensor<8x32xf32>
  %a1 = graph.gelu %u1 : (tensor<8x32xf32>) -> tensor<8x32xf32>
  %d1 = graph.linear %a1, %w2 : (tensor<8x32xf32>, tensor<16x32xf32>) -> tensor<8x16xf32>
  %s1 = graph.slice %d1 {offsets = array<i64: 0, 0>, sizes = array<i64: 4, 16>, strides = array<i64: 1, 1>} : (tensor<8x16xf32>) -> tensor<4x16xf32>
  %x1 = graph.add %x0, %s1 : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
  %n2 = spmd.all_gather %x1 by <@mesh, [{"tp"}, {}]> : tensor<4x16xf32> -> tensor<8x16xf32>
  %u2 = graph.linear %n2, %w3 : (tensor<8x16xf32>, tensor<32x16xf32>) -> tensor<8x32xf32>
  %a2 = graph.gelu %u2 : (tensor<8x32xf32>) -> tensor<8x32xf32>
  %d2 = graph.linear %a2, %w4 : (tensor<8x32xf32>, tensor<16x32xf32>) -> tensor<8x16xf32>
  %s2 = graph.slice %d2 {offsets = array<i64: 0, 0>, sizes = array<i64: 4, 16>, strides = array<i64: 1, 1>} : (tensor<8x16xf32>) -> tensor<4x16xf32>
  %x2 = graph.add %x1, %s2 : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
  %e = graph.exp %x2 : (tensor<4x16xf32>) -> tensor<4x16xf32>
  %y = spmd.all_gather %e by <@mesh, [{"tp"}, {}]> : tensor<4x16xf32> -> tensor<8x16xf32>
  return %x0, %u1, %a1, %x1, %u2, %a2, %y
      : tensor<4x16xf32>, tensor<8x32xf32>, tensor<8x32xf32>, tensor<4x16xf32>, tensor<8x32xf32>, tensor<8x32xf32>, tensor<8x16xf32>
}

func.func private @train.I(%w2: tensor<16x32xf32>, %w3: tensor<32x16xf32>, %w4: tensor<16x32xf32>,
    %u1: tensor<8x32xf32>, %u2: tensor<8x32xf32>, %y: tensor<8x16xf32>)
    -> (tensor<8x32xf32>, tensor<8x16xf32>, tensor<8x32xf32>) {
  %e2 = graph.contract "bo,oi->bi" %y, %w4 : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %h2 = graph.gelu_grad %e2, %u2 : (tensor<8x32xf32>, tensor<8x32xf32>) -> tensor<8x32xf32>
  %f2 = graph.contract "bo,oi->bi" %h2, %w3 : (tensor<8x32xf32>, tensor<32x16xf32>) -> tensor<8x16xf32>
  %y1 = graph.add %y, %f2 : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %e1 = graph.contract "bo,oi->bi" %y1, %w2 : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %h1 = graph.gelu_grad %e1, %u1 : (tensor<8x32xf32>, tensor<8x32xf32>) -> tensor<8x32xf32>
  return %h2, %y1, %h1 : tensor<8x32xf32>, tensor<8x16xf32>, tensor<8x32xf32>
}

func.func private @train.W(%x0: tensor<4x16xf32>, %a1: tensor<8x32xf32>, %x1: tensor<4x16xf32>, %a2: tensor<8x32xf32>,
    %y: tensor<8x16xf32>, %h2: tensor<8x32xf32>, %y1: tensor<8x16xf32>, %h1: tensor<8x32xf32>)
    -> (tensor<32x16xf32>, tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x32xf32>) {
  %g4 = graph.contract "bo,bi->oi" %y, %a2 : (tensor<8x16xf32>, tensor<8x32xf32>) -> tensor<16x32xf32>
  %n2 = spmd.all_gather %x1 by <@mesh, [{"tp"}, {}]> : tensor<4x16xf32> -> tensor<8x16xf32>
  %g3 = graph.contract "bo,bi->oi" %h2, %n2 : (tensor<8x32xf32>, tensor<8x16xf32>) -> tensor<32x16xf32>
  %g2 = graph.contract "bo,bi->oi" %y1, %a1 : (tensor<8x16xf32>, tensor<8x32xf32>) -> tensor<16x32xf32>
  %n1 = spmd.all_gather %x0 by <@mesh, [{"tp"}, {}]> : tensor<4x16xf32> -> tensor<8x16xf32>
  %g1 = graph.contract "bo,bi->oi" %h1, %n1 : (tensor<8x32xf32>, tensor<8x16xf32>) -> tensor<32x16xf32>
  return %g1, %g2, %g3, %g4 : tensor<32x16xf32>, tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x32xf32>
}
