// RUN: cleave-opt %s --exec-fuse=processors=108 --split-input-file | FileCheck %s

// What a GPU has of its own in fused kernels: blocks for all processors, and
// bytes that are worth a kernel.

// A kernel of both would read each element twice, in two orders.

// CHECK-LABEL: func.func @two_orders
// CHECK-DAG: exec.launch @reduce(
// CHECK-DAG: exec.launch @cast(
func.func @two_orders(%x: tensor<8x196x768xf32>) -> (tensor<8x768x196xbf16>, tensor<768xf32>) {
  %t = exec.view %x : tensor<8x196x768xf32> -> tensor<8x768x196xf32, #exec.layout<[150528, 1, 768]>>
  %0 = graph.cast %t : (tensor<8x768x196xf32, #exec.layout<[150528, 1, 768]>>) -> tensor<8x768x196xbf16>
  %1 = graph.reduce sum %t {dims = array<i64: 0, 2>} : (tensor<8x768x196xf32, #exec.layout<[150528, 1, 768]>>) -> tensor<768xf32>
  return %0, %1 : tensor<8x768x196xbf16>, tensor<768xf32>
}

// -----

// Partial sums of each row of classes are more than the gradient itself, which
// a kernel of its own reads again. That has blocks for parts of the columns,
// and no partial sums in memory.

// CHECK-LABEL: func.func @few_rows
// CHECK: exec.launch @softmax_grad(
// CHECK: exec.launch @reduce(
// CHECK: exec.kernel @softmax_grad row [8, 50256]
// CHECK: exec.kernel @reduce column [8, 50256]
// CHECK-SAME: alignment = {{[^g]*}}, teams = 8 : i64, threads = 32 : i64, vector = 4 : i64
func.func @few_rows(%g: tensor<8x50256xf32>, %y: tensor<8x50256xf32>)
    -> (tensor<8x50256xf32>, tensor<50256xf32>) {
  %0 = graph.softmax_grad %g, %y : (tensor<8x50256xf32>, tensor<8x50256xf32>) -> tensor<8x50256xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 0>} : (tensor<8x50256xf32>) -> tensor<50256xf32>
  return %0, %1 : tensor<8x50256xf32>, tensor<50256xf32>
}

// -----

// A group of rows for each processor, where their number is not divisible, in
// blocks that have a processor for themselves.

// CHECK-LABEL: func.func @many_rows
// CHECK: exec.launch @softmax_grad_reduce(
// CHECK: exec.kernel @softmax_grad_reduce column [1576, 768]
// CHECK-SAME: groups = 108 : i64, teams = 2 : i64, threads = 192 : i64
func.func @many_rows(%g: tensor<1576x768xf32>, %y: tensor<1576x768xf32>)
    -> (tensor<1576x768xf32>, tensor<768xf32>) {
  %0 = graph.softmax_grad %g, %y : (tensor<1576x768xf32>, tensor<1576x768xf32>) -> tensor<1576x768xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 0>} : (tensor<1576x768xf32>) -> tensor<768xf32>
  return %0, %1 : tensor<1576x768xf32>, tensor<768xf32>
}

// -----

// A bias gradient: blocks of fewer columns, where partial sums of as many
// blocks of more columns were too much beside what is read.

// CHECK-LABEL: func.func @narrow_blocks
// CHECK: exec.kernel @cast_reduce column [1576, 768]
// CHECK-SAME: groups = 18 : i64, teams = 16 : i64, threads = 16 : i64, vector = 8 : i64
// CHECK: exec.kernel @cast_reduce{{.*}} column [16384, 768]
// CHECK-SAME: teams = 8 : i64, threads = 32 : i64, vector = 8 : i64
func.func @narrow_blocks(%x: tensor<1576x768xbf16>, %y: tensor<16384x768xbf16>)
    -> (tensor<768xf32>, tensor<768xf32>) {
  %0 = graph.cast %x : (tensor<1576x768xbf16>) -> tensor<1576x768xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 0>} : (tensor<1576x768xf32>) -> tensor<768xf32>
  %2 = graph.cast %y : (tensor<16384x768xbf16>) -> tensor<16384x768xf32>
  %3 = graph.reduce sum %2 {dims = array<i64: 0>} : (tensor<16384x768xf32>) -> tensor<768xf32>
  return %1, %3 : tensor<768xf32>, tensor<768xf32>
}

// -----

// All threads of a row read its two numbers, which the first of them must not
// overwrite; an element of the row is one thread's.

// CHECK-LABEL: func.func @numbers_of_rows
// CHECK: exec.launch @add_rsqrt_mul({{.*}}) {inplace = [array<i64: 1, 2>]}
func.func @numbers_of_rows(%v: tensor<4x1xf32>, %b: tensor<4x1xf32>, %x: tensor<4x64xf32>)
    -> (tensor<4x1xf32>, tensor<4x64xf32>) {
  %a = graph.add %v, %b : (tensor<4x1xf32>, tensor<4x1xf32>) -> tensor<4x1xf32>
  %r = graph.rsqrt %a : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %y = graph.mul %x, %r : (tensor<4x64xf32>, tensor<4x1xf32>) -> tensor<4x64xf32>
  return %a, %y : tensor<4x1xf32>, tensor<4x64xf32>
}

// -----

// Behind a reduction of the row all have read them.

// CHECK-LABEL: func.func @behind_a_reduction
// CHECK: exec.launch @mul_reduce_add({{.*}}) {inplace = [array<i64: 0, 1>]}
func.func @behind_a_reduction(%v: tensor<4xf32>, %x: tensor<4x64xf32>) -> tensor<4xf32> {
  %w = graph.reshape %v : (tensor<4xf32>) -> tensor<4x1xf32>
  %y = graph.mul %x, %w : (tensor<4x64xf32>, tensor<4x1xf32>) -> tensor<4x64xf32>
  %s = graph.reduce sum %y {dims = array<i64: 1>} : (tensor<4x64xf32>) -> tensor<4xf32>
  %r = graph.add %s, %v : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %r : tensor<4xf32>
}
