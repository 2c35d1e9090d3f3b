// RUN: cleave-opt %s --split-input-file --graph-raise-norms | FileCheck %s
// RUN: cleave-opt %s --split-input-file --graph-raise-norms --mlir-print-debuginfo --mlir-print-local-scope | FileCheck %s --check-prefix=LOC

// The weight joins a norm, which has the place and the precision of the last op,
// and the epsilon that was written.
// CHECK-LABEL: func.func @rms(
// CHECK-SAME: %[[X:[^:]*]]: tensor<4x8xf32>, %[[W:[^:]*]]: tensor<8xf32>)
// CHECK-NEXT: %[[Y:.*]], %{{.*}} = graph.rms_norm %[[X]] weight %[[W]] {epsilon = 9.9999999999999995E-7 : f64, graph.precision = "f32"}
// CHECK-NEXT: return %[[Y]]
// LOC-LABEL: func.func @rms(
// LOC: graph.rms_norm {{.*}} loc("model.py":12:1)
func.func @rms(%x: tensor<4x8xf32>, %w: tensor<8xf32>) -> tensor<4x8xf32> {
  %n = graph.constant dense<8.0> : tensor<f32>
  %e = graph.constant dense<1.0e-6> : tensor<f32>
  %0 = graph.mul %x, %x : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 1>} : (tensor<4x8xf32>) -> tensor<4xf32>
  %2 = graph.reshape %1 : (tensor<4xf32>) -> tensor<4x1xf32>
  %3 = graph.div %2, %n : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
  %4 = graph.add %3, %e : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
  %5 = graph.rsqrt %4 : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %6 = graph.mul %x, %5 {graph.precision = "16bit"} : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32> loc("model.py":11:1)
  %7 = graph.mul %w, %6 {graph.precision = "f32"} : (tensor<8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32> loc("model.py":12:1)
  return %7 : tensor<4x8xf32>
}

// -----

// A layer norm by a division, whose variance does not pass a gradient to its
// mean; its weight and bias.
// CHECK-LABEL: func.func @layer(
// CHECK-SAME: %[[X:[^:]*]]: tensor<4x8xf32>, %[[W:[^:]*]]: tensor<8xf32>, %[[B:[^:]*]]: tensor<8xf32>)
// CHECK-NEXT: %[[Y:.*]], %{{.*}}, %{{.*}} = graph.layer_norm %[[X]] weight %[[W]] bias %[[B]] {epsilon = 1.000000e-05 : f64}
// CHECK-NEXT: return %[[Y]]
func.func @layer(%x: tensor<4x8xf32>, %w: tensor<8xf32>, %b: tensor<8xf32>) -> tensor<4x8xf32> {
  %n = graph.constant dense<0.125> : tensor<f32>
  %e = graph.constant dense<1.0e-5> : tensor<f32>
  %0 = graph.reduce sum %x {dims = array<i64: 1>} : (tensor<4x8xf32>) -> tensor<4xf32>
  %1 = graph.reshape %0 : (tensor<4xf32>) -> tensor<4x1xf32>
  %m = graph.mul %1, %n : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
  %c = graph.sub %x, %m : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  %s = graph.stop_gradient %m : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %d = graph.sub %x, %s : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  %2 = graph.mul %d, %d : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %3 = graph.reduce sum %2 {dims = array<i64: 1>} : (tensor<4x8xf32>) -> tensor<4xf32>
  %4 = graph.mul %n, %3 : (tensor<f32>, tensor<4xf32>) -> tensor<4xf32>
  %5 = graph.add %e, %4 : (tensor<f32>, tensor<4xf32>) -> tensor<4xf32>
  %6 = graph.sqrt %5 : (tensor<4xf32>) -> tensor<4xf32>
  %7 = graph.reshape %6 : (tensor<4xf32>) -> tensor<4x1xf32>
  %8 = graph.div %c, %7 : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  %9 = graph.mul %8, %w : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %10 = graph.reshape %b : (tensor<8xf32>) -> tensor<1x8xf32>
  %11 = graph.add %10, %9 : (tensor<1x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %11 : tensor<4x8xf32>
}

// -----

// The mean that is subtracted has no gradient, as that of a layer norm has.
// CHECK-LABEL: func.func @detached(
// CHECK-SAME: %[[X:[^:]*]]: tensor<4x8xf32>)
// CHECK: %[[S:.*]] = graph.stop_gradient
// CHECK-NEXT: %[[C:.*]] = graph.sub %[[X]], %[[S]]
// CHECK-NEXT: %[[Y:.*]], %{{.*}} = graph.rms_norm %[[C]] {epsilon = 5.000000e-01 : f64}
// CHECK-NEXT: return %[[Y]]
func.func @detached(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %n = graph.constant dense<8.0> : tensor<f32>
  %e = graph.constant dense<0.5> : tensor<f32>
  %0 = graph.reduce sum %x {dims = array<i64: 1>} : (tensor<4x8xf32>) -> tensor<4xf32>
  %1 = graph.reshape %0 : (tensor<4xf32>) -> tensor<4x1xf32>
  %m = graph.div %1, %n : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
  %s = graph.stop_gradient %m : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %c = graph.sub %x, %s : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  %2 = graph.mul %c, %c : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %3 = graph.reduce sum %2 {dims = array<i64: 1>} : (tensor<4x8xf32>) -> tensor<4xf32>
  %4 = graph.div %3, %n : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %5 = graph.add %4, %e : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %6 = graph.rsqrt %5 : (tensor<4xf32>) -> tensor<4xf32>
  %7 = graph.reshape %6 : (tensor<4xf32>) -> tensor<4x1xf32>
  %8 = graph.mul %c, %7 : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  return %8 : tensor<4x8xf32>
}

// -----

// Element j of the factor, which is of row j, scales column j.
// CHECK-LABEL: func.func @columns(
// CHECK-NOT: graph.rms_norm
// CHECK: graph.rsqrt
func.func @columns(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %n = graph.constant dense<4.0> : tensor<f32>
  %e = graph.constant dense<0.5> : tensor<f32>
  %0 = graph.mul %x, %x : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 1>} : (tensor<4x4xf32>) -> tensor<4xf32>
  %2 = graph.div %1, %n : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %3 = graph.add %2, %e : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %4 = graph.rsqrt %3 : (tensor<4xf32>) -> tensor<4xf32>
  %5 = graph.mul %x, %4 : (tensor<4x4xf32>, tensor<4xf32>) -> tensor<4x4xf32>
  return %5 : tensor<4x4xf32>
}

// -----

// A sum of 8 elements that is divided by 7 is no mean.
// CHECK-LABEL: func.func @unbiased(
// CHECK-NOT: graph.rms_norm
// CHECK: graph.rsqrt
func.func @unbiased(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %n = graph.constant dense<7.0> : tensor<f32>
  %e = graph.constant dense<0.5> : tensor<f32>
  %0 = graph.mul %x, %x : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 1>} : (tensor<4x8xf32>) -> tensor<4xf32>
  %2 = graph.reshape %1 : (tensor<4xf32>) -> tensor<4x1xf32>
  %3 = graph.div %2, %n : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
  %4 = graph.add %3, %e : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
  %5 = graph.rsqrt %4 : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %6 = graph.mul %x, %5 : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  return %6 : tensor<4x8xf32>
}

// -----

// A norm that has other readers stays beside the one with a weight, and a factor
// that is no vector stays a factor.
// CHECK-LABEL: func.func @readers(
// CHECK-SAME: %[[X:[^:]*]]: tensor<4x4xbf16>, %[[W:[^:]*]]: tensor<4xbf16>, %[[G:[^:]*]]: tensor<4x1xbf16>)
// CHECK-NEXT: %[[N:.*]], %{{.*}} = graph.rms_norm %[[X]] {epsilon = 1.000000e-05 : f64}
// CHECK-NEXT: %[[M:.*]], %{{.*}} = graph.rms_norm %[[X]] weight %[[W]] {epsilon = 1.000000e-05 : f64}
// CHECK-NEXT: %[[P:.*]] = graph.mul %[[N]], %[[G]]
// CHECK-NEXT: return %[[M]], %[[P]]
func.func @readers(%x: tensor<4x4xbf16>, %w: tensor<4xbf16>, %g: tensor<4x1xbf16>) -> (tensor<4x4xbf16>, tensor<4x4xbf16>) {
  %one = graph.constant dense<1.0> : tensor<bf16>
  %n = graph.constant dense<4.0> : tensor<bf16>
  %e = graph.constant dense<1.0e-5> : tensor<bf16>
  %0 = graph.mul %x, %x : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %1 = graph.reduce sum %0 {dims = array<i64: 1>} : (tensor<4x4xbf16>) -> tensor<4xbf16>
  %2 = graph.div %1, %n : (tensor<4xbf16>, tensor<bf16>) -> tensor<4xbf16>
  %3 = graph.add %2, %e : (tensor<4xbf16>, tensor<bf16>) -> tensor<4xbf16>
  %4 = graph.sqrt %3 : (tensor<4xbf16>) -> tensor<4xbf16>
  %5 = graph.div %one, %4 : (tensor<bf16>, tensor<4xbf16>) -> tensor<4xbf16>
  %6 = graph.reshape %5 : (tensor<4xbf16>) -> tensor<4x1xbf16>
  %7 = graph.broadcast %6 : (tensor<4x1xbf16>) -> tensor<4x4xbf16>
  %8 = graph.mul %x, %7 : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %9 = graph.mul %8, %w : (tensor<4x4xbf16>, tensor<4xbf16>) -> tensor<4x4xbf16>
  %10 = graph.mul %8, %g : (tensor<4x4xbf16>, tensor<4x1xbf16>) -> tensor<4x4xbf16>
  return %9, %10 : tensor<4x4xbf16>, tensor<4x4xbf16>
}
