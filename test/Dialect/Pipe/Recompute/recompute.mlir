// RUN: cleave-opt %s --pipe-recompute --pipe-schedule --pipe-verify | FileCheck %s

// What heavy work gives is saved; what streams from it is computed again, just
// before it is read; statistics of rows stay saved.

// The program says what that is: of each kind of op and line, how many, and the
// bytes of results that are not saved for it. The second result of the norm is
// saved, and the flags take a byte each.

// CHECK-LABEL: pipe.program @train(
// CHECK-SAME: pipe.recomputed = [
// CHECK-SAME: {bytes = 256 : i64, line = "recompute.mlir:{{[0-9]+}}", op = "graph.compare", ops = 1 : i64},
// CHECK-SAME: {bytes = 1024 : i64, line = "recompute.mlir:{{[0-9]+}}", op = "graph.gelu", ops = 1 : i64},
// CHECK-SAME: {bytes = 1024 : i64, line = "recompute.mlir:{{[0-9]+}}", op = "graph.rms_norm", ops = 1 : i64}]
// CHECK-SAME: pipe.unsaved_bytes = 2304 : i64
// CHECK: %[[F:.*]]:3 = pipe.invoke @train.F({{.*}}results = ["saved", "saved", "saved"]} : ({{.*}}) -> (tensor<4x64xf32>, tensor<4xf32>, tensor<4x64xf32>)
// CHECK: pipe.invoke @train.B({{.*}}split = array<i64: -1, -1, -1, 0, -1>
pipe.program @train(%w: tensor<64x64xf32>, %g: tensor<64xf32>, %x: tensor<8x64xf32>)
    -> (tensor<64x64xf32>, tensor<64xf32>)
    attributes {micro_batches = 2 : i64} {
  %0:6 = pipe.invoke @train.F(%w, %g, %x) {part = "F", split = array<i64: -1, -1, 0>,
      results = ["saved", "saved", "saved", "saved", "saved", "saved"]}
      : (tensor<64x64xf32>, tensor<64xf32>, tensor<8x64xf32>)
      -> (tensor<4x64xf32>, tensor<4x64xf32>, tensor<4xf32>, tensor<4x64xf32>, tensor<4x64xf32>, tensor<4x64xi1>)
  %1:2 = pipe.invoke @train.B(%0#0, %0#1, %0#2, %0#3, %0#4, %0#5) {part = "B",
      split = array<i64: -1, -1, -1, -1, -1, -1>, results = ["accumulate", "accumulate"]}
      : (tensor<4x64xf32>, tensor<4x64xf32>, tensor<4xf32>, tensor<4x64xf32>, tensor<4x64xf32>, tensor<4x64xi1>)
      -> (tensor<64x64xf32>, tensor<64xf32>)
  pipe.return %1#0, %1#1 : tensor<64x64xf32>, tensor<64xf32>
}

// CHECK-LABEL: func.func private @train.F(
// CHECK-NOT: graph.gelu
// CHECK-NOT: graph.compare
// CHECK: return
func.func private @train.F(%w: tensor<64x64xf32>, %g: tensor<64xf32>, %x: tensor<4x64xf32>)
    -> (tensor<4x64xf32>, tensor<4x64xf32>, tensor<4xf32>, tensor<4x64xf32>, tensor<4x64xf32>, tensor<4x64xi1>) {
  %h = graph.linear %x, %w : (tensor<4x64xf32>, tensor<64x64xf32>) -> tensor<4x64xf32>
  %n, %r = graph.rms_norm %h weight %g {epsilon = 1.0e-6 : f64} : (tensor<4x64xf32>, tensor<64xf32>) -> (tensor<4x64xf32>, tensor<4xf32>)
  %u = graph.linear %n, %w : (tensor<4x64xf32>, tensor<64x64xf32>) -> tensor<4x64xf32>
  %a = graph.gelu %u : (tensor<4x64xf32>) -> tensor<4x64xf32>
  %m = graph.compare gt %x, %x : (tensor<4x64xf32>, tensor<4x64xf32>) -> tensor<4x64xi1>
  return %h, %n, %r, %u, %a, %m : tensor<4x64xf32>, tensor<4x64xf32>, tensor<4xf32>, tensor<4x64xf32>, tensor<4x64xf32>, tensor<4x64xi1>
}

// CHECK-LABEL: func.func private @train.B(
// CHECK-SAME: %[[H:[a-z0-9]+]]: tensor<4x64xf32>, %[[R:[a-z0-9]+]]: tensor<4xf32>, %[[U:[a-z0-9]+]]: tensor<4x64xf32>, %[[X:[a-z0-9]+]]: tensor<4x64xf32>, %[[G:[a-z0-9]+]]: tensor<64xf32>)
// CHECK-DAG: %[[A:.*]] = graph.gelu %[[U]]
// CHECK-DAG: %[[M:.*]] = graph.compare gt %[[X]], %[[X]]
// CHECK: graph.select %[[M]], %[[A]], %[[U]]
// CHECK: %[[N:.*]], %{{.*}} = graph.rms_norm %[[H]] weight %[[G]]
// CHECK: graph.contract "bo,bi->oi" %{{.*}}, %[[N]]
// CHECK: graph.rms_norm_weight_grad %[[N]], %[[H]], %[[R]]
func.func private @train.B(%h: tensor<4x64xf32>, %n: tensor<4x64xf32>, %r: tensor<4xf32>, %u: tensor<4x64xf32>,
    %a: tensor<4x64xf32>, %m: tensor<4x64xi1>) -> (tensor<64x64xf32>, tensor<64xf32>) {
  %s = graph.select %m, %a, %u : (tensor<4x64xi1>, tensor<4x64xf32>, tensor<4x64xf32>) -> tensor<4x64xf32>
  %d = graph.contract "bo,bi->oi" %s, %n : (tensor<4x64xf32>, tensor<4x64xf32>) -> tensor<64x64xf32>
  %e = graph.rms_norm_weight_grad %n, %h, %r : (tensor<4x64xf32>, tensor<4x64xf32>, tensor<4xf32>) -> tensor<64xf32>
  return %d, %e : tensor<64x64xf32>, tensor<64xf32>
}

// Of two values of one size, that nearest to backward is saved: the residual
// stream, not the product that it adds.
// CHECK-LABEL: pipe.program @residual(
// CHECK-NOT: pipe.recomputed
// CHECK: pipe.invoke @residual.F({{.*}}results = ["saved"]
pipe.program @residual(%w: tensor<64x64xf32>, %x: tensor<8x64xf32>) -> (tensor<64x64xf32>)
    attributes {micro_batches = 2 : i64} {
  %0 = pipe.invoke @residual.F(%w, %x) {part = "F", split = array<i64: -1, 0>, results = ["saved"]}
      : (tensor<64x64xf32>, tensor<8x64xf32>) -> (tensor<4x64xf32>)
  %1 = pipe.invoke @residual.B(%0) {part = "B", split = array<i64: -1>, results = ["accumulate"]}
      : (tensor<4x64xf32>) -> tensor<64x64xf32>
  pipe.return %1 : tensor<64x64xf32>
}
// CHECK-LABEL: func.func private @residual.F(
// CHECK: %[[S:.*]] = graph.add
// CHECK: return %[[S]]
func.func private @residual.F(%w: tensor<64x64xf32>, %x: tensor<4x64xf32>) -> tensor<4x64xf32> {
  %h = graph.linear %x, %w : (tensor<4x64xf32>, tensor<64x64xf32>) -> tensor<4x64xf32>
  %s = graph.add %x, %h : (tensor<4x64xf32>, tensor<4x64xf32>) -> tensor<4x64xf32>
  return %s : tensor<4x64xf32>
}
func.func private @residual.B(%s: tensor<4x64xf32>) -> tensor<64x64xf32> {
  %d = graph.contract "bo,bi->oi" %s, %s : (tensor<4x64xf32>, tensor<4x64xf32>) -> tensor<64x64xf32>
  return %d : tensor<64x64xf32>
}

// A value saved in the place of a larger one counts against what that saves.
// CHECK-LABEL: pipe.program @narrow(
// CHECK-SAME: pipe.recomputed = [{bytes = 1024 : i64, line = "recompute.mlir:{{[0-9]+}}", op = "graph.cast", ops = 1 : i64}]
// CHECK-SAME: pipe.unsaved_bytes = 512 : i64
pipe.program @narrow(%w: tensor<64x64xf16>, %x: tensor<8x64xf16>) -> (tensor<64x64xf32>)
    attributes {micro_batches = 2 : i64} {
  %0 = pipe.invoke @narrow.F(%w, %x) {part = "F", split = array<i64: -1, 0>, results = ["saved"]}
      : (tensor<64x64xf16>, tensor<8x64xf16>) -> (tensor<4x64xf32>)
  %1 = pipe.invoke @narrow.B(%0) {part = "B", split = array<i64: -1>, results = ["accumulate"]}
      : (tensor<4x64xf32>) -> tensor<64x64xf32>
  pipe.return %1 : tensor<64x64xf32>
}
func.func private @narrow.F(%w: tensor<64x64xf16>, %x: tensor<4x64xf16>) -> tensor<4x64xf32> {
  %h = graph.linear %x, %w : (tensor<4x64xf16>, tensor<64x64xf16>) -> tensor<4x64xf16>
  %s = graph.cast %h : (tensor<4x64xf16>) -> tensor<4x64xf32>
  return %s : tensor<4x64xf32>
}
func.func private @narrow.B(%s: tensor<4x64xf32>) -> tensor<64x64xf32> {
  %d = graph.contract "bo,bi->oi" %s, %s : (tensor<4x64xf32>, tensor<4x64xf32>) -> tensor<64x64xf32>
  return %d : tensor<64x64xf32>
}

// Chosen rows are copied again; sums over what chose the same row are kept.

// CHECK-LABEL: pipe.program @embed(
// CHECK-SAME: pipe.recomputed = [
// CHECK-SAME: {bytes = 1024 : i64, line = "recompute.mlir:{{[0-9]+}}", op = "graph.gather", ops = 1 : i64}]
// CHECK: pipe.invoke @embed.F(%{{.*}} -> tensor<9x64xf32>
pipe.program @embed(%w: tensor<9x64xf32>, %i: tensor<4xi64>) -> tensor<9x64xf32>
    attributes {micro_batches = 1 : i64} {
  %0:2 = pipe.invoke @embed.F(%w, %i) {part = "F", split = array<i64: -1, -1>,
      results = ["saved", "saved"]}
      : (tensor<9x64xf32>, tensor<4xi64>) -> (tensor<4x64xf32>, tensor<9x64xf32>)
  %1 = pipe.invoke @embed.B(%0#0, %0#1, %i) {part = "B", split = array<i64: -1, -1, -1>, results = ["accumulate"]}
      : (tensor<4x64xf32>, tensor<9x64xf32>, tensor<4xi64>) -> tensor<9x64xf32>
  pipe.return %1 : tensor<9x64xf32>
}
// CHECK-LABEL: func.func private @embed.F(
// CHECK-SAME: %{{.*}}: tensor<4xi64>) -> tensor<9x64xf32> {
func.func private @embed.F(%w: tensor<9x64xf32>, %i: tensor<4xi64>) -> (tensor<4x64xf32>, tensor<9x64xf32>) {
  %e = graph.gather %w, %i {dim = 0 : i64} : (tensor<9x64xf32>, tensor<4xi64>) -> tensor<4x64xf32>
  %s = graph.scatter_add %e, %i {dim = 0 : i64, size = 9 : i64} : (tensor<4x64xf32>, tensor<4xi64>) -> tensor<9x64xf32>
  return %e, %s : tensor<4x64xf32>, tensor<9x64xf32>
}
// CHECK-LABEL: func.func private @embed.B(
// CHECK: graph.gather
func.func private @embed.B(%e: tensor<4x64xf32>, %s: tensor<9x64xf32>, %i: tensor<4xi64>) -> tensor<9x64xf32> {
  %t = graph.scatter_add %e, %i {dim = 0 : i64, size = 9 : i64} : (tensor<4x64xf32>, tensor<4xi64>) -> tensor<9x64xf32>
  %r = graph.add %t, %s : (tensor<9x64xf32>, tensor<9x64xf32>) -> tensor<9x64xf32>
  return %r : tensor<9x64xf32>
}
