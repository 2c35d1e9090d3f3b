// RUN: cleave-opt %s --pipe-narrow-saves --pipe-schedule --pipe-verify | FileCheck %s
// RUN: cleave-opt %s --pipe-narrow-saves=type=fp16 | FileCheck %s --check-prefix=HALF
// RUN: cleave-opt %s --pipe-narrow-saves=type=fp8 | FileCheck %s --check-prefix=EIGHT
// RUN: not cleave-opt %s --pipe-narrow-saves=type=f8 2>&1 | FileCheck %s --check-prefix=BAD

// What only backward of the same stage reads is saved in fewer bits, and converted
// back before its first use; flags, a byte each, in a bit each. Statistics of rows
// and what the next stage or the loss reads are as they were.

// BAD: unknown type of saved values 'f8'; there are bf16, fp16 and fp8

// CHECK-LABEL: pipe.program @train(
// CHECK: pipe.invoke @train.F0({{.*}}-> (tensor<4x64xbf16>, tensor<4xf32>, tensor<8xi32>, tensor<4x64xf32>)
// CHECK: pipe.invoke @train.F1({{.*}}-> (tensor<4x64xbf16>, tensor<4x64xf32>)
// HALF: pipe.invoke @train.F0({{.*}}-> (tensor<4x64xf16>, tensor<4xf32>, tensor<8xi32>, tensor<4x64xf32>)
// EIGHT: pipe.invoke @train.F0({{.*}}-> (tensor<4x64xf8E4M3FN>, tensor<4xf32>, tensor<8xi32>, tensor<4x64xf32>)
pipe.program @train(%w: tensor<64x64xf32>, %g: tensor<64xf32>, %x: tensor<8x64xf32>)
    -> (tensor<64x64xf32> {graph.updates = "w"}, tensor<f32>)
    attributes {micro_batches = 2 : i64} {
  %0:4 = pipe.invoke @train.F0(%w, %g, %x) {part = "F", split = array<i64: -1, -1, 0>,
      results = ["saved", "saved", "saved", "saved"]}
      : (tensor<64x64xf32>, tensor<64xf32>, tensor<8x64xf32>)
      -> (tensor<4x64xf32>, tensor<4xf32>, tensor<4x64xi1>, tensor<4x64xf32>)
  %1:2 = pipe.invoke @train.F1(%w, %0#3) {part = "F", stage = 1, split = array<i64: -1, -1>,
      results = ["saved", "saved"]}
      : (tensor<64x64xf32>, tensor<4x64xf32>) -> (tensor<4x64xf32>, tensor<4x64xf32>)
  %2:2 = pipe.invoke @train.B1(%1#0, %1#1) {part = "B", stage = 1, split = array<i64: -1, -1>,
      results = ["saved", "accumulate"]}
      : (tensor<4x64xf32>, tensor<4x64xf32>) -> (tensor<4x64xf32>, tensor<f32>)
  %3 = pipe.invoke @train.B0(%0#0, %0#1, %0#2, %0#3, %2#0) {part = "B",
      split = array<i64: -1, -1, -1, -1, -1>, results = ["accumulate"]}
      : (tensor<4x64xf32>, tensor<4xf32>, tensor<4x64xi1>, tensor<4x64xf32>, tensor<4x64xf32>)
      -> tensor<64x64xf32>
  pipe.return %3, %2#1 : tensor<64x64xf32>, tensor<f32>
}

// CHECK-LABEL: func.func private @train.F0(
// CHECK: %[[H:.*]] = graph.linear
// CHECK: %[[S:.*]] = graph.cast %[[H]] {pipe.narrowed} : (tensor<4x64xf32>) -> tensor<4x64xbf16>
// CHECK: %[[M:.*]] = graph.reshape %{{.*}} {pipe.narrowed} : (tensor<4x64xi1>) -> tensor<8x32xi1>
// CHECK: graph.select %[[M]]
// CHECK: %[[P:.*]] = graph.cast %{{.*}} {pipe.narrowed} : (tensor<8xf64>) -> tensor<8xi32>
// CHECK: return %[[S]], %{{.*}}, %[[P]], %{{.*}} : tensor<4x64xbf16>, tensor<4xf32>, tensor<8xi32>, tensor<4x64xf32>
func.func private @train.F0(%w: tensor<64x64xf32>, %g: tensor<64xf32>, %x: tensor<4x64xf32>)
    -> (tensor<4x64xf32>, tensor<4xf32>, tensor<4x64xi1>, tensor<4x64xf32>) {
  %h = graph.linear %x, %w : (tensor<4x64xf32>, tensor<64x64xf32>) -> tensor<4x64xf32>
  %n, %r = graph.rms_norm %h weight %g {epsilon = 1.0e-6 : f64} : (tensor<4x64xf32>, tensor<64xf32>) -> (tensor<4x64xf32>, tensor<4xf32>)
  %m = graph.compare gt %n, %x : (tensor<4x64xf32>, tensor<4x64xf32>) -> tensor<4x64xi1>
  return %h, %r, %m, %n : tensor<4x64xf32>, tensor<4xf32>, tensor<4x64xi1>, tensor<4x64xf32>
}

func.func private @train.F1(%w: tensor<64x64xf32>, %n: tensor<4x64xf32>)
    -> (tensor<4x64xf32>, tensor<4x64xf32>) {
  %u = graph.linear %n, %w : (tensor<4x64xf32>, tensor<64x64xf32>) -> tensor<4x64xf32>
  %v = graph.gelu %u : (tensor<4x64xf32>) -> tensor<4x64xf32>
  return %u, %v : tensor<4x64xf32>, tensor<4x64xf32>
}

// CHECK-LABEL: func.func private @train.B1(
// CHECK-SAME: %[[U:.*]]: tensor<4x64xbf16>, %{{.*}}: tensor<4x64xf32>) -> (tensor<4x64xf32>, tensor<f32>)
// CHECK: graph.cast %[[U]] : (tensor<4x64xbf16>) -> tensor<4x64xf32>
func.func private @train.B1(%u: tensor<4x64xf32>, %v: tensor<4x64xf32>)
    -> (tensor<4x64xf32>, tensor<f32>) {
  %d = graph.mul %u, %u : (tensor<4x64xf32>, tensor<4x64xf32>) -> tensor<4x64xf32>
  %l = graph.reduce sum %v {dims = array<i64: 0, 1>} : (tensor<4x64xf32>) -> tensor<f32>
  return %d, %l : tensor<4x64xf32>, tensor<f32>
}

// CHECK-LABEL: func.func private @train.B0(
// CHECK-SAME: %[[H0:.*]]: tensor<4x64xbf16>, %{{.*}}: tensor<4xf32>, %[[P0:.*]]: tensor<8xi32>,
// CHECK: graph.cast %[[P0]] : (tensor<8xi32>) -> tensor<8xf64>
// CHECK: %[[FLAGS:.*]] = graph.reshape %{{.*}} : (tensor<8x32xi1>) -> tensor<4x64xi1>
// CHECK-NEXT: graph.select %[[FLAGS]]
// CHECK-NEXT: %[[WIDE:.*]] = graph.cast %[[H0]] : (tensor<4x64xbf16>) -> tensor<4x64xf32>
// CHECK-NEXT: graph.contract "bo,bi->oi" %{{.*}}, %[[WIDE]]
func.func private @train.B0(%h: tensor<4x64xf32>, %r: tensor<4xf32>, %m: tensor<4x64xi1>,
    %n: tensor<4x64xf32>, %d: tensor<4x64xf32>) -> tensor<64x64xf32> {
  %s = graph.select %m, %n, %d : (tensor<4x64xi1>, tensor<4x64xf32>, tensor<4x64xf32>) -> tensor<4x64xf32>
  %e = graph.contract "bo,bi->oi" %s, %h : (tensor<4x64xf32>, tensor<4x64xf32>) -> tensor<64x64xf32>
  return %e : tensor<64x64xf32>
}
