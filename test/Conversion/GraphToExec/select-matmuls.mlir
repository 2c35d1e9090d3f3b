// What the library of a GPU does with the sums of a product before it rounds
// them. Without the option, products are f32, and kernels do the rest.
// RUN: cleave-opt %s --exec-select-kernels="products16" --split-input-file \
// RUN:   | FileCheck %s
// RUN: cleave-opt %s --exec-select-kernels --split-input-file \
// RUN:   | FileCheck %s --check-prefix=WIDE
// RUN: cleave-opt %s --exec-select-kernels="products16 products8" \
// RUN:   --split-input-file | FileCheck %s --check-prefix=EIGHT

// WIDE-NOT: exec.contract {{.*}} -> tensor<{{.*}}f16>
// WIDE-NOT: exec.contract {{.*}} {gelu

// CHECK-LABEL: func.func @bias
func.func @bias(%x: tensor<2x4x8xf16>, %w: tensor<16x8xf16>, %b: tensor<16xf16>) -> tensor<2x4x16xf16> {
  // CHECK: %[[C:.*]] = exec.contract %{{.*}}, %{{.*}} bias %arg2 : (tensor<8x8xf16>, tensor<8x16xf16, #exec.layout<[1, 8]>>, tensor<16xf16>) -> tensor<8x16xf16>
  // CHECK-NEXT: exec.view %[[C]]
  // CHECK-NOT: graph.add
  %0 = graph.linear %x, %w bias %b : (tensor<2x4x8xf16>, tensor<16x8xf16>, tensor<16xf16>) -> tensor<2x4x16xf16>
  return %0 : tensor<2x4x16xf16>
}

// -----

// Rows do not begin at multiples of 16 bytes: a kernel adds the bias, and
// rounds once.
// CHECK-LABEL: func.func @unaligned
func.func @unaligned(%x: tensor<4x6xbf16>, %w: tensor<16x6xbf16>, %b: tensor<16xbf16>) -> tensor<4x16xbf16> {
  // CHECK: %[[C:.*]] = exec.contract {{.*}} -> tensor<4x16xf32>
  // CHECK: graph.add %[[C]]
  // CHECK: graph.cast
  %0 = graph.linear %x, %w bias %b : (tensor<4x6xbf16>, tensor<16x6xbf16>, tensor<16xbf16>) -> tensor<4x16xbf16>
  return %0 : tensor<4x16xbf16>
}

// -----

// Without a bias rows may begin anywhere. A gradient of a weight is f32.
// CHECK-LABEL: func.func @plain
func.func @plain(%x: tensor<4x6xbf16>, %w: tensor<15x6xbf16>, %g: tensor<4x15xbf16>) -> (tensor<4x15xbf16>, tensor<15x6xf32>) {
  // CHECK: exec.contract {{.*}} -> tensor<4x15xbf16>
  // CHECK: exec.contract {{.*}} -> tensor<15x6xf32>
  %0 = graph.linear %x, %w : (tensor<4x6xbf16>, tensor<15x6xbf16>) -> tensor<4x15xbf16>
  %1 = graph.contract "so,si->oi" %g, %x {result_element = f32} : (tensor<4x15xbf16>, tensor<4x6xbf16>) -> tensor<15x6xf32>
  return %0, %1 : tensor<4x15xbf16>, tensor<15x6xf32>
}

// -----

// Factors of 8 bits are multiplied as bf16, and results are f32.
// CHECK-LABEL: func.func @eight_bits
func.func @eight_bits(%x: tensor<4x8xf8E4M3FN>, %w: tensor<16x8xf8E4M3FN>) -> tensor<4x16xf32> {
  // CHECK: exec.contract {{.*}}bf16{{.*}} -> tensor<4x16xf32>
  %0 = graph.linear %x, %w {result_element = f32} : (tensor<4x8xf8E4M3FN>, tensor<16x8xf8E4M3FN>) -> tensor<4x16xf32>
  return %0 : tensor<4x16xf32>
}

// -----

// A sum of products of 16 bits is accumulated in them.
// CHECK-LABEL: func.func @accumulated
func.func @accumulated(%x: tensor<4x8xbf16>, %w: tensor<16x8xbf16>, %v: tensor<16x8xbf16>) -> tensor<4x16xbf16> {
  // CHECK: %[[A:.*]] = exec.contract {{.*}} -> tensor<4x16xbf16>
  // CHECK: exec.contract {{.*}} accumulate %[[A]]
  %0 = graph.linear %x, %w : (tensor<4x8xbf16>, tensor<16x8xbf16>) -> tensor<4x16xbf16>
  %1 = graph.linear %x, %v : (tensor<4x8xbf16>, tensor<16x8xbf16>) -> tensor<4x16xbf16>
  %2 = graph.add %0, %1 : (tensor<4x16xbf16>, tensor<4x16xbf16>) -> tensor<4x16xbf16>
  return %2 : tensor<4x16xbf16>
}

// -----

// What gelu is taken of is written if it is read.
// CHECK-LABEL: func.func @gelu
func.func @gelu(%x: tensor<2x4x8xbf16>, %w: tensor<16x8xbf16>, %b: tensor<16xbf16>) -> (tensor<2x4x16xbf16>, tensor<2x4x16xbf16>) {
  // CHECK: %[[Y:.*]], %[[X:.*]] = exec.contract {{.*}} bias %arg2 {gelu} : {{.*}} -> (tensor<8x16xbf16>, tensor<8x16xbf16>)
  // CHECK-NOT: graph.gelu
  // CHECK-DAG: %[[Z:.*]] = exec.view %[[X]]
  // CHECK-DAG: %[[G:.*]] = exec.view %[[Y]]
  // CHECK: return %[[Z]], %[[G]]
  %0 = graph.linear %x, %w bias %b : (tensor<2x4x8xbf16>, tensor<16x8xbf16>, tensor<16xbf16>) -> tensor<2x4x16xbf16>
  %1 = graph.gelu %0 {tanh} : (tensor<2x4x16xbf16>) -> tensor<2x4x16xbf16>
  return %0, %1 : tensor<2x4x16xbf16>, tensor<2x4x16xbf16>
}

// -----

// CHECK-LABEL: func.func @gelu_alone
func.func @gelu_alone(%x: tensor<4x8xbf16>, %w: tensor<16x8xbf16>) -> tensor<4x16xbf16> {
  // CHECK: %[[Y:.*]] = exec.contract %arg0, %{{.*}} {gelu} : {{.*}} -> tensor<4x16xbf16>
  // CHECK: return %[[Y]]
  %0 = graph.linear %x, %w : (tensor<4x8xbf16>, tensor<16x8xbf16>) -> tensor<4x16xbf16>
  %1 = graph.gelu %0 {tanh} : (tensor<4x16xbf16>) -> tensor<4x16xbf16>
  return %1 : tensor<4x16xbf16>
}

// -----

// The exact form stays a kernel.
// CHECK-LABEL: func.func @exact
func.func @exact(%x: tensor<4x8xbf16>, %w: tensor<16x8xbf16>) -> tensor<4x16xbf16> {
  // CHECK: exec.contract %arg0, %{{.*}} : {{.*}} -> tensor<4x16xbf16>
  // CHECK: graph.gelu
  %0 = graph.linear %x, %w : (tensor<4x8xbf16>, tensor<16x8xbf16>) -> tensor<4x16xbf16>
  %1 = graph.gelu %0 : (tensor<4x16xbf16>) -> tensor<4x16xbf16>
  return %1 : tensor<4x16xbf16>
}

// -----

// CHECK-LABEL: func.func @slope
func.func @slope(%g: tensor<2x4x8xbf16>, %w: tensor<8x16xbf16>, %x: tensor<2x4x16xbf16>) -> tensor<2x4x16xbf16> {
  // CHECK: %[[X:.*]] = exec.view %arg2 : tensor<2x4x16xbf16> -> tensor<8x16xbf16>
  // CHECK: exec.contract {{.*}} gelu_grad %[[X]] :
  // CHECK-NOT: graph.gelu_grad
  %0 = graph.contract "abo,oi->abi" %g, %w : (tensor<2x4x8xbf16>, tensor<8x16xbf16>) -> tensor<2x4x16xbf16>
  %1 = graph.gelu_grad %0, %x {tanh} : (tensor<2x4x16xbf16>, tensor<2x4x16xbf16>) -> tensor<2x4x16xbf16>
  return %1 : tensor<2x4x16xbf16>
}

// -----

// A kernel reads what gelu was taken of anyway, and so does its gradient.
// CHECK-LABEL: func.func @slope_recomputed
func.func @slope_recomputed(%g: tensor<4x8xbf16>, %w: tensor<8x16xbf16>, %x: tensor<4x16xbf16>) -> (tensor<4x16xbf16>, tensor<4x16xbf16>) {
  // CHECK-NOT: gelu_grad %arg2
  // CHECK: graph.gelu_grad
  %0 = graph.contract "ao,oi->ai" %g, %w : (tensor<4x8xbf16>, tensor<8x16xbf16>) -> tensor<4x16xbf16>
  %1 = graph.gelu_grad %0, %x {tanh} : (tensor<4x16xbf16>, tensor<4x16xbf16>) -> tensor<4x16xbf16>
  %2 = graph.gelu %x {tanh} : (tensor<4x16xbf16>) -> tensor<4x16xbf16>
  return %1, %2 : tensor<4x16xbf16>, tensor<4x16xbf16>
}

// -----

// The product is read elsewhere.
// CHECK-LABEL: func.func @slope_read_twice
func.func @slope_read_twice(%g: tensor<4x8xbf16>, %w: tensor<8x16xbf16>, %x: tensor<4x16xbf16>) -> (tensor<4x16xbf16>, tensor<4x16xbf16>) {
  // CHECK: %[[P:.*]] = exec.contract %arg0, %arg1 :
  // CHECK: graph.gelu_grad %[[P]], %arg2
  %0 = graph.contract "ao,oi->ai" %g, %w : (tensor<4x8xbf16>, tensor<8x16xbf16>) -> tensor<4x16xbf16>
  %1 = graph.gelu_grad %0, %x {tanh} : (tensor<4x16xbf16>, tensor<4x16xbf16>) -> tensor<4x16xbf16>
  return %0, %1 : tensor<4x16xbf16>, tensor<4x16xbf16>
}

// -----

// On a GPU that has them, products of 8 bits read rows and columns: the factors
// of a gradient are copied into them.
// EIGHT-LABEL: func.func @forward
func.func @forward(%x: tensor<32x16xf8E4M3FN>, %w: tensor<16x16xf8E4M3FN>) -> tensor<32x16xf32> {
  // EIGHT-NOT: graph.cast
  // EIGHT-NOT: exec.copy
  // EIGHT: exec.contract %arg0, %{{.*}} : (tensor<32x16xf8E4M3FN>, tensor<16x16xf8E4M3FN, #exec.layout<[1, 16]>>) -> tensor<32x16xf32>
  %0 = graph.linear %x, %w {result_element = f32} : (tensor<32x16xf8E4M3FN>, tensor<16x16xf8E4M3FN>) -> tensor<32x16xf32>
  return %0 : tensor<32x16xf32>
}

// -----

// EIGHT-LABEL: func.func @gradients
func.func @gradients(%g: tensor<32x16xf8E5M2>, %x: tensor<32x48xf8E4M3FN>, %w: tensor<16x48xf8E4M3FN>) -> (tensor<32x48xf32>, tensor<16x48xf32>) {
  // EIGHT: %[[W:.*]] = exec.copy %arg2 : tensor<16x48xf8E4M3FN> -> tensor<16x48xf8E4M3FN, #exec.layout<[1, 16]>>
  // EIGHT: exec.contract %arg0, %[[W]]
  // EIGHT-DAG: %[[G:.*]] = exec.copy %{{.*}} -> tensor<16x32xf8E5M2>
  // EIGHT-DAG: %[[X:.*]] = exec.copy %arg1 : tensor<32x48xf8E4M3FN> -> tensor<32x48xf8E4M3FN, #exec.layout<[1, 32]>>
  // EIGHT: exec.contract %[[G]], %[[X]]
  %0 = graph.contract "ao,oi->ai" %g, %w {result_element = f32} : (tensor<32x16xf8E5M2>, tensor<16x48xf8E4M3FN>) -> tensor<32x48xf32>
  %1 = graph.contract "ao,ai->oi" %g, %x {result_element = f32} : (tensor<32x16xf8E5M2>, tensor<32x48xf8E4M3FN>) -> tensor<16x48xf32>
  return %0, %1 : tensor<32x48xf32>, tensor<16x48xf32>
}

// -----

// Two of the wider range, and what is no multiple of 16 elements, are bf16.
// EIGHT-LABEL: func.func @others
func.func @others(%g: tensor<32x16xf8E5M2>, %h: tensor<16x16xf8E5M2>, %x: tensor<32x24xf8E4M3FN>) -> (tensor<32x16xf32>, tensor<16x24xf32>) {
  // EIGHT: exec.contract {{.*}}bf16{{.*}}bf16{{.*}} -> tensor<32x16xf32>
  // EIGHT: exec.contract {{.*}}bf16{{.*}}bf16{{.*}} -> tensor<16x24xf32>
  %0 = graph.contract "ao,oi->ai" %g, %h {result_element = f32} : (tensor<32x16xf8E5M2>, tensor<16x16xf8E5M2>) -> tensor<32x16xf32>
  %1 = graph.contract "ao,ai->oi" %g, %x {result_element = f32} : (tensor<32x16xf8E5M2>, tensor<32x24xf8E4M3FN>) -> tensor<16x24xf32>
  return %0, %1 : tensor<32x16xf32>, tensor<16x24xf32>
}
