// RUN: cleave-opt %s --exec-select-kernels --split-input-file | FileCheck %s

// A weight is read transposed where it lies; rows of all leading dimensions
// are one dimension.
// CHECK-LABEL: func.func @linear
func.func @linear(%x: tensor<2x4x8xf32>, %w: tensor<16x8xf32>) -> tensor<2x4x16xf32> {
  // CHECK: %[[X:.*]] = exec.view %arg0 : tensor<2x4x8xf32> -> tensor<8x8xf32>
  // CHECK: %[[W:.*]] = exec.view %arg1 : tensor<16x8xf32> -> tensor<8x16xf32, #exec.layout<[1, 8]>>
  // CHECK: %[[C:.*]] = exec.contract %[[X]], %[[W]]
  // CHECK: exec.view %[[C]] : tensor<8x16xf32> -> tensor<2x4x16xf32>
  // CHECK-NOT: exec.copy
  %0 = graph.linear %x, %w : (tensor<2x4x8xf32>, tensor<16x8xf32>) -> tensor<2x4x16xf32>
  return %0 : tensor<2x4x16xf32>
}

// -----

// No kernel reads the result: the product accumulates onto the bias.
// CHECK-LABEL: func.func @bias_written
func.func @bias_written(%x: tensor<4x8xf32>, %w: tensor<16x8xf32>, %b: tensor<16xf32>) -> tensor<4x16xf32> {
  // CHECK: %[[B:.*]] = exec.view %arg2 : tensor<16xf32> -> tensor<4x16xf32, #exec.layout<[0, 1]>>
  // CHECK: %[[S:.*]] = exec.copy %[[B]]
  // CHECK: exec.contract %{{.*}}, %{{.*}} accumulate %[[S]]
  %0 = graph.linear %x, %w bias %b : (tensor<4x8xf32>, tensor<16x8xf32>, tensor<16xf32>) -> tensor<4x16xf32>
  return %0 : tensor<4x16xf32>
}

// -----

// A kernel reads the result: it adds the bias on the way.
// CHECK-LABEL: func.func @bias_fused
func.func @bias_fused(%x: tensor<4x8xf32>, %w: tensor<16x8xf32>, %b: tensor<16xf32>) -> tensor<4x16xf32> {
  // CHECK: %[[C:.*]] = exec.contract %arg0, %{{[0-9]+}} :
  // CHECK: graph.add %[[C]], %arg2
  // CHECK: graph.gelu
  %0 = graph.linear %x, %w bias %b : (tensor<4x8xf32>, tensor<16x8xf32>, tensor<16xf32>) -> tensor<4x16xf32>
  %1 = graph.gelu %0 : (tensor<4x16xf32>) -> tensor<4x16xf32>
  return %1 : tensor<4x16xf32>
}

// -----

// The gradient of a weight: both operands are read where they lie.
// CHECK-LABEL: func.func @weight_gradient
func.func @weight_gradient(%g: tensor<2x4x16xf32>, %x: tensor<2x4x8xf32>) -> tensor<16x8xf32> {
  // CHECK-NOT: exec.copy
  // CHECK: exec.contract {{.*}} : (tensor<16x8xf32, #exec.layout<[1, 16]>>, tensor<8x8xf32>) -> tensor<16x8xf32>
  %0 = graph.contract "bso,bsi->oi" %g, %x : (tensor<2x4x16xf32>, tensor<2x4x8xf32>) -> tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}

// -----

// Batches stay batches; a result in another order is a view.
// CHECK-LABEL: func.func @batched
func.func @batched(%a: tensor<3x4x8xf32>, %b: tensor<3x8x5xf32>) -> tensor<5x3xf32> {
  // CHECK: exec.contract %arg0, %arg1 : (tensor<3x4x8xf32>, tensor<3x8x5xf32>) -> tensor<3x4x5xf32>
  %0 = graph.contract "bmk,bkn->bmn" %a, %b : (tensor<3x4x8xf32>, tensor<3x8x5xf32>) -> tensor<3x4x5xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 1>} : (tensor<3x4x5xf32>) -> tensor<3x5xf32>
  %2 = graph.neg %1 : (tensor<3x5xf32>) -> tensor<3x5xf32>
  %4 = graph.constant dense<1.0> : tensor<5x5xf32>
  %3 = graph.contract "bn,nm->mb" %2, %4 : (tensor<3x5xf32>, tensor<5x5xf32>) -> tensor<5x3xf32>
  return %3 : tensor<5x3xf32>
}

// -----

// A sum that dies takes the product in its own memory.
// CHECK-LABEL: func.func @accumulate
func.func @accumulate(%a: tensor<4x8xf32>, %b: tensor<8x2xf32>, %x: tensor<4x2xf32>) -> tensor<4x2xf32> {
  // CHECK: %[[N:.*]] = graph.neg
  // CHECK: exec.contract %arg0, %arg1 accumulate %[[N]]
  // CHECK-NOT: graph.add
  %0 = graph.neg %x : (tensor<4x2xf32>) -> tensor<4x2xf32>
  %1 = graph.contract "mk,kn->mn" %a, %b : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>
  %2 = graph.add %0, %1 : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
  return %2 : tensor<4x2xf32>
}

// -----

// An argument may only be overwritten when it dies.
// CHECK-LABEL: func.func @alive
func.func @alive(%a: tensor<4x8xf32>, %b: tensor<8x2xf32>, %x: tensor<4x2xf32>) -> tensor<4x2xf32> {
  // CHECK: exec.contract %arg0, %arg1 :
  // CHECK: graph.add
  %1 = graph.contract "mk,kn->mn" %a, %b : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>
  %2 = graph.add %x, %1 : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
  return %2 : tensor<4x2xf32>
}

// -----

// CHECK-LABEL: func.func @dies
func.func @dies(%a: tensor<4x8xf32>, %b: tensor<8x2xf32>, %x: tensor<4x2xf32> {exec.dies}) -> tensor<4x2xf32> {
  // CHECK: exec.contract %arg0, %arg1 accumulate %arg2
  %1 = graph.contract "mk,kn->mn" %a, %b : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>
  %2 = graph.add %x, %1 : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
  return %2 : tensor<4x2xf32>
}

// -----

// The head in chunks: the gradient of the weight accumulates, that of the input
// is written in slices of one buffer.
// CHECK-LABEL: func.func @head
func.func @head(%x: tensor<32x8xf32>, %w: tensor<50x8xf32>, %t: tensor<32xi64>, %g: tensor<32xf32>)
    -> (tensor<32xf32>, tensor<32x8xf32>, tensor<50x8xf32>) {
  // CHECK: exec.contract {{.*}} -> tensor<16x50xf32>
  // CHECK: graph.cross_entropy %
  // CHECK: graph.cross_entropy_grad
  // CHECK: %[[DX0:.*]] = exec.contract {{.*}} -> tensor<16x8xf32>
  // CHECK: %[[DW0:.*]] = exec.contract {{.*}} -> tensor<50x8xf32>
  // CHECK: exec.contract {{.*}} -> tensor<16x50xf32>
  // CHECK: %[[DX1:.*]] = exec.contract {{.*}} -> tensor<16x8xf32, #exec.layout<[8, 1], offset = 128>>
  // CHECK: exec.contract {{.*}} accumulate %[[DW0]]
  // CHECK: exec.join %[[DX0]], %[[DX1]]
  %l, %dx, %dw = graph.head_loss %x, %w targets %t gradient %g {chunk_rows = 16 : i64}
      : (tensor<32x8xf32>, tensor<50x8xf32>, tensor<32xi64>, tensor<32xf32>)
      -> (tensor<32xf32>, tensor<32x8xf32>, tensor<50x8xf32>)
  return %l, %dx, %dw : tensor<32xf32>, tensor<32x8xf32>, tensor<50x8xf32>
}

// -----

// On a shard, indices are counted from its origin; what it does not hold, and
// the padding index, lie outside of it.

// CHECK-LABEL: func.func @scatter_shard(
// CHECK: %[[O:.*]] = graph.reshape %{{.*}} : (tensor<1xi64>) -> tensor<i64>
// CHECK: %[[L:.*]] = graph.sub %{{.*}}, %[[O]]
// CHECK: %[[P:.*]] = graph.compare eq
// CHECK: %[[I:.*]] = graph.select %[[P]], %{{.*}}, %[[L]]
// CHECK: exec.scatter_add %{{.*}}, %[[I]] : (tensor<6x4xf32>, tensor<6xi64>) -> tensor<8x4xf32>
func.func @scatter_shard(%u: tensor<6x4xf32>, %i: tensor<6xi64>, %o: tensor<1xi64>) -> tensor<8x4xf32> {
  %0 = graph.scatter_add %u, %i origin %o {dim = 0 : i64, size = 8 : i64, padding_index = 1 : i64, global_size = 24 : i64} : (tensor<6x4xf32>, tensor<6xi64>, tensor<1xi64>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

// bf16 has all floats of 8 bits: the library multiplies them as such.
// CHECK-LABEL: func.func @float8
func.func @float8(%g: tensor<4x8xf8E5M2>, %w: tensor<8x16xf8E4M3FN>) -> tensor<4x16xf32> {
  // CHECK: %[[G:.*]] = graph.cast %arg0 : (tensor<4x8xf8E5M2>) -> tensor<4x8xbf16>
  // CHECK: %[[W:.*]] = graph.cast %arg1 : (tensor<8x16xf8E4M3FN>) -> tensor<8x16xbf16>
  // CHECK: exec.contract %[[G]], %[[W]] : (tensor<4x8xbf16>, tensor<8x16xbf16>) -> tensor<4x16xf32>
  %0 = graph.contract "bo,oh->bh" %g, %w {result_element = f32} : (tensor<4x8xf8E5M2>, tensor<8x16xf8E4M3FN>) -> tensor<4x16xf32>
  return %0 : tensor<4x16xf32>
}

// -----

// Matrices are one batch, and narrow floats are widened.
// CHECK-LABEL: func.func @columns
// CHECK: %[[P:.*]] = graph.cast %arg0 : (tensor<2x3x8x2xbf16>) -> tensor<2x3x8x2xf32>
// CHECK: %[[B:.*]] = exec.view %[[P]] : tensor<2x3x8x2xf32> -> tensor<6x8x2xf32>
// CHECK: %[[Q:.*]] = exec.orthonormalize %[[B]] : tensor<6x8x2xf32> -> tensor<6x8x2xf32>
// CHECK: %[[R:.*]] = exec.view %[[Q]] : tensor<6x8x2xf32> -> tensor<2x3x8x2xf32>
// CHECK: graph.cast %[[R]] : (tensor<2x3x8x2xf32>) -> tensor<2x3x8x2xbf16>
func.func @columns(%p: tensor<2x3x8x2xbf16>) -> tensor<2x3x8x2xbf16> {
  %0 = graph.orthonormalize %p : (tensor<2x3x8x2xbf16>) -> tensor<2x3x8x2xbf16>
  return %0 : tensor<2x3x8x2xbf16>
}

// -----

// Many elements, or those of long rows, are selected by a command.
// CHECK-LABEL: func.func @many
// CHECK: %[[X:.*]] = graph.cast %arg0 : (tensor<2x3x90xbf16>) -> tensor<2x3x90xf32>
// CHECK: %[[R:.*]] = exec.view %[[X]] : tensor<2x3x90xf32> -> tensor<6x90xf32>
// CHECK: %[[V:.*]], %[[I:.*]] = exec.top_k %[[R]] : tensor<6x90xf32> -> tensor<6x9xf32>, tensor<6x9xi64>
// CHECK: %[[W:.*]] = exec.view %[[V]] : tensor<6x9xf32> -> tensor<2x3x9xf32>
// CHECK: graph.cast %[[W]] : (tensor<2x3x9xf32>) -> tensor<2x3x9xbf16>
// CHECK: exec.view %[[I]] : tensor<6x9xi64> -> tensor<2x3x9xi64>
func.func @many(%x: tensor<2x3x90xbf16>) -> (tensor<2x3x9xbf16>, tensor<2x3x9xi64>) {
  %0, %1 = graph.top_k %x {k = 9 : i64} : (tensor<2x3x90xbf16>) -> (tensor<2x3x9xbf16>, tensor<2x3x9xi64>)
  return %0, %1 : tensor<2x3x9xbf16>, tensor<2x3x9xi64>
}

// -----

// CHECK-LABEL: func.func @long
// CHECK: exec.top_k %{{.*}} : tensor<1x20000xf32> -> tensor<1x7xf32>, tensor<1x7xi64>
// CHECK: graph.top_k
func.func @long(%x: tensor<20000xf32>) -> (tensor<7xf32>, tensor<7xi64>, tensor<6xf32>) {
  %0, %1 = graph.top_k %x {k = 7 : i64} : (tensor<20000xf32>) -> (tensor<7xf32>, tensor<7xi64>)
  %2, %3 = graph.top_k %x {k = 6 : i64} : (tensor<20000xf32>) -> (tensor<6xf32>, tensor<6xi64>)
  return %0, %1, %2 : tensor<7xf32>, tensor<7xi64>, tensor<6xf32>
}

// -----

// CHECK-LABEL: func.func @few
// CHECK: graph.top_k
func.func @few(%x: tensor<5x90xf32>) -> (tensor<5x8xf32>, tensor<5x8xi64>) {
  %0, %1 = graph.top_k %x {k = 8 : i64} : (tensor<5x90xf32>) -> (tensor<5x8xf32>, tensor<5x8xi64>)
  return %0, %1 : tensor<5x8xf32>, tensor<5x8xi64>
}

// -----

// A weight in columns is one in rows, the other way round; a part of a matrix is
// read where it is.
// CHECK-LABEL: func.func @grouped
func.func @grouped(%x: tensor<6x16xf32>, %w: tensor<4x5x8xf32>, %g: tensor<6xi64>) -> (tensor<6x5xf32>, tensor<4x8x5xf32>) {
  // CHECK: %[[ORDER:.*]], %{{.*}}, %[[OFFSETS:.*]] = exec.sort_rows %arg2 : (tensor<6xi64>)
  %order, %inverse, %offsets = graph.sort_rows %g {size = 4 : i64} : (tensor<6xi64>) -> (tensor<6xi64>, tensor<6xi64>, tensor<1x5xi64>)
  // CHECK: %[[ROWS:.*]] = exec.view %arg0
  %rows = exec.view %x : tensor<6x16xf32> -> tensor<6x8xf32, #exec.layout<[16, 1], offset = 8>>
  %columns = exec.view %w : tensor<4x5x8xf32> -> tensor<4x8x5xf32, #exec.layout<[40, 1, 8]>>
  // CHECK-NOT: exec.copy
  // CHECK: %[[Y:.*]] = exec.grouped_contract %[[ROWS]], %{{.*}}, %[[OFFSETS]] {transpose} : (tensor<6x8xf32, #exec.layout<[16, 1], offset = 8>>, tensor<4x5x8xf32>, tensor<1x5xi64>) -> tensor<6x5xf32>
  %y = graph.grouped_contract %rows, %columns, %offsets : (tensor<6x8xf32, #exec.layout<[16, 1], offset = 8>>, tensor<4x8x5xf32, #exec.layout<[40, 1, 8]>>, tensor<1x5xi64>) -> tensor<6x5xf32>
  // CHECK: exec.grouped_contract_weight_grad %[[ROWS]], %[[Y]], %[[OFFSETS]] :
  %d = graph.grouped_contract_weight_grad %rows, %y, %offsets : (tensor<6x8xf32, #exec.layout<[16, 1], offset = 8>>, tensor<6x5xf32>, tensor<1x5xi64>) -> tensor<4x8x5xf32>
  return %y, %d : tensor<6x5xf32>, tensor<4x8x5xf32>
}

// -----

// Factors of f16 are multiplied in f32, and every result is rounded from it.
// CHECK-LABEL: func.func @grouped_narrow
func.func @grouped_narrow(%x: tensor<6x8xf16>, %w: tensor<4x8x5xf16>, %b: tensor<6x8xbf16>, %v: tensor<4x8x5xbf16>, %o: tensor<1x5xi64>) -> (tensor<6x5xf16>, tensor<6x5xbf16>) {
  // CHECK: %[[P:.*]] = exec.grouped_contract %{{.*}}, %{{.*}}, %arg4 : (tensor<6x8xf32>, tensor<4x8x5xf32>, tensor<1x5xi64>) -> tensor<6x5xf32>
  // CHECK: graph.cast %[[P]] : (tensor<6x5xf32>) -> tensor<6x5xf16>
  %0 = graph.grouped_contract %x, %w, %o : (tensor<6x8xf16>, tensor<4x8x5xf16>, tensor<1x5xi64>) -> tensor<6x5xf16>
  // CHECK: exec.grouped_contract %arg2, %arg3, %arg4 : (tensor<6x8xbf16>, tensor<4x8x5xbf16>, tensor<1x5xi64>) -> tensor<6x5xf32>
  %1 = graph.grouped_contract %b, %v, %o : (tensor<6x8xbf16>, tensor<4x8x5xbf16>, tensor<1x5xi64>) -> tensor<6x5xbf16>
  return %0, %1 : tensor<6x5xf16>, tensor<6x5xbf16>
}
