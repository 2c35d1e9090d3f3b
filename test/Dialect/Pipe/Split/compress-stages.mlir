// Two stages of two layers; the residual stream crosses from one to the other.
// RUN: cleave-opt %s --pipe-compress-stages="density=0.25 stages=layers.1" | FileCheck %s
// RUN: cleave-opt %s --pipe-compress-stages="density=0.25" | FileCheck %s
// The derivative takes the gradient at the same places, and puts it there.
// RUN: cleave-opt %s --pipe-compress-stages="density=0.25 stages=layers.1" --graph-differentiate --cse | FileCheck %s --check-prefix=TRAIN
// As much is sent as without it.
// RUN: cleave-opt %s --pipe-compress-stages="density=0.75 stages=layers.1" 2>&1 | FileCheck %s --check-prefix=GAIN

// Mixed precision chooses among rounded values; values are sent as the residual stream is.
// RUN: cleave-opt %s --pipe-compress-stages="density=0.25 stages=layers.1 precision=f32" | FileCheck %s --check-prefix=WIDE
// RUN: cleave-opt %s --pipe-compress-stages="density=0.25 stages=layers.1 precision=16bit" --graph-mixed-precision | FileCheck %s --check-prefix=NARROW

// WIDE: graph.abs %{{.*}} {graph.precision = "16bit"}
// WIDE-NEXT: graph.top_k %{{.*}} {graph.precision = "16bit", k = 2 : i64}
// WIDE: graph.gather {{.*}}graph.precision = "f32"
// WIDE-NEXT: graph.scatter_add {{.*}}graph.precision = "f32"

// NARROW: graph.linear {{.*}} {result_element = f32}
// NARROW: graph.abs %{{.*}} : (tensor<4x6x8xbf16>) -> tensor<4x6x8xbf16>
// NARROW: graph.gather {{.*}} : (tensor<4x6x8xbf16>, tensor<4x6x2xi32>) -> tensor<4x6x2xbf16>
// NARROW: graph.scatter_add {{.*}} : (tensor<4x6x2xbf16>, tensor<4x6x2xi32>) -> tensor<4x6x8xf32>

// CHECK-LABEL: func.func @loss
// CHECK: %[[X:.*]] = graph.add
// CHECK-NEXT: %[[M:.*]] = graph.abs %[[X]]
// CHECK-NEXT: %{{.*}}, %[[I:.*]] = graph.top_k %[[M]] {k = 2 : i64}
// CHECK-NEXT: %[[J:.*]] = graph.cast %[[I]] : (tensor<4x6x2xi64>) -> tensor<4x6x2xi32>
// CHECK-NEXT: %[[E:.*]] = graph.gather %[[X]], %[[J]] {batch = 2 : i64, dim = 2 : i64}
// CHECK-NEXT: %[[Y:.*]] = graph.scatter_add %[[E]], %[[J]]
// CHECK-SAME: {batch = 2 : i64, dim = 2 : i64, pipe.begins_stage = 1 : i64, size = 8 : i64}
// CHECK-NEXT: graph.linear %[[Y]]
// CHECK-NEXT: graph.add %[[Y]]

// TRAIN: %[[J:.*]] = graph.cast {{.*}} -> tensor<4x6x2xi32>
// TRAIN: graph.seed
// TRAIN: %[[D:.*]] = graph.gather %{{.*}}, %[[J]] {batch = 2 : i64, dim = 2 : i64}
// TRAIN-NEXT: graph.scatter_add %[[D]], %[[J]] {batch = 2 : i64, dim = 2 : i64, size = 8 : i64}

// GAIN: warning: stages send and receive 72 bytes for each row of this value, which would be 64 without compression
func.func @loss(%w0: tensor<8x8xf32> {graph.name = "layers.0.w", graph.role = "parameter"},
                %w1: tensor<8x8xf32> {graph.name = "layers.1.w", graph.role = "parameter"},
                %x: tensor<4x6x8xf32> {graph.name = "x", graph.role = "input"}) -> tensor<f32> {
  %0 = graph.linear %x, %w0 : (tensor<4x6x8xf32>, tensor<8x8xf32>) -> tensor<4x6x8xf32>
  %1 = graph.add %0, %x : (tensor<4x6x8xf32>, tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
  %2 = graph.linear %1, %w1 : (tensor<4x6x8xf32>, tensor<8x8xf32>) -> tensor<4x6x8xf32>
  %3 = graph.add %1, %2 : (tensor<4x6x8xf32>, tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
  %4 = graph.reduce sum %3 {dims = array<i64: 0, 1, 2>} : (tensor<4x6x8xf32>) -> tensor<f32>
  return %4 : tensor<f32>
}
