// RUN: cleave-opt %s --exec-fuse --split-input-file | FileCheck %s

// Bias, dropout and the residual are computed on the way into the norm; the sum
// is stored once and read back from its own row.

// CHECK-LABEL: func.func @residual
// CHECK: %[[L:.*]]:4 = exec.launch @add_dropout_layer_norm
// CHECK-SAME: inplace = [array<i64: 0, 0>, array<i64: 0, 3>, array<i64: 1, 0>, array<i64: 1, 3>]
// CHECK: return %[[L]]#0, %[[L]]#1, %[[L]]#2, %[[L]]#3
// CHECK: exec.kernel @add_dropout_layer_norm row [2048, 768]
// CHECK: exec.pass -> f32
// CHECK:   exec.philox
// CHECK:   exec.store
// CHECK: exec.pass -> f32
// CHECK-NOT: exec.philox
// CHECK: exec.pass {
func.func @residual(%x: tensor<4x512x768xf32>, %r: tensor<4x512x768xf32>,
                    %w: tensor<768xf32>, %b: tensor<768xf32>,
                    %bias: tensor<768xf32>, %rng: tensor<2xi64>)
    -> (tensor<4x512x768xf32>, tensor<4x512x768xf32>, tensor<4x512xf32>, tensor<4x512xf32>) {
  %0 = graph.add %x, %bias : (tensor<4x512x768xf32>, tensor<768xf32>) -> tensor<4x512x768xf32>
  %1 = graph.dropout %0, %rng {probability = 0.1 : f64, id = 3 : i64} : (tensor<4x512x768xf32>, tensor<2xi64>) -> tensor<4x512x768xf32>
  %2 = graph.add %1, %r : (tensor<4x512x768xf32>, tensor<4x512x768xf32>) -> tensor<4x512x768xf32>
  %y, %m, %s = graph.layer_norm %2 weight %w bias %b {epsilon = 1.0e-5 : f64} : (tensor<4x512x768xf32>, tensor<768xf32>, tensor<768xf32>) -> (tensor<4x512x768xf32>, tensor<4x512xf32>, tensor<4x512xf32>)
  return %2, %y, %m, %s : tensor<4x512x768xf32>, tensor<4x512x768xf32>, tensor<4x512xf32>, tensor<4x512xf32>
}

// -----

// A softmax keeps its exponentials between passes.

// CHECK-LABEL: func.func @attention_weights
// CHECK: exec.kernel @softmax row [6, 100]
// CHECK: exec.reduce max
// CHECK: %[[ROW:.*]] = exec.keep : tensor<100xf32>
// CHECK: math.exp
// CHECK: exec.store %{{.*}}, %[[ROW]]
// CHECK: exec.reduce sum
// CHECK: exec.load %[[ROW]]
// CHECK-NOT: math.exp
func.func @attention_weights(%x: tensor<2x3x100xf32>) -> tensor<2x3x100xf32> {
  %0 = graph.softmax %x : (tensor<2x3x100xf32>) -> tensor<2x3x100xf32>
  return %0 : tensor<2x3x100xf32>
}

// -----

// The bias gradient is summed while the gradient is computed.

// CHECK-LABEL: func.func @backward
// CHECK: exec.launch @gelu_grad_reduce
// CHECK: exec.kernel @gelu_grad_reduce column [2048, 3072]
// CHECK-SAME: groups = 64
// CHECK: exec.accumulate sum
func.func @backward(%g: tensor<2048x3072xf32>, %x: tensor<2048x3072xf32>)
    -> (tensor<2048x3072xf32>, tensor<3072xf32>) {
  %0 = graph.gelu_grad %g, %x {tanh} : (tensor<2048x3072xf32>, tensor<2048x3072xf32>) -> tensor<2048x3072xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 0>} : (tensor<2048x3072xf32>) -> tensor<3072xf32>
  return %0, %1 : tensor<2048x3072xf32>, tensor<3072xf32>
}

// -----

// Equal kernels are made once.

// CHECK-LABEL: func.func @twice
// CHECK: exec.launch @silu(%arg0)
// CHECK: exec.launch @silu(%arg1)
// CHECK: exec.kernel @silu map [3, 4096]
// CHECK-SAME: valid = 10000
// CHECK-NOT: exec.kernel
func.func @twice(%a: tensor<100x100xf32>, %b: tensor<100x100xf32>)
    -> (tensor<100x100xf32>, tensor<100x100xf32>) {
  %0 = graph.silu %a : (tensor<100x100xf32>) -> tensor<100x100xf32>
  %1 = graph.silu %b : (tensor<100x100xf32>) -> tensor<100x100xf32>
  return %0, %1 : tensor<100x100xf32>, tensor<100x100xf32>
}

// -----

// The logits may be overwritten by their gradient: the target's logit is read
// before.

// CHECK-LABEL: func.func @loss
// CHECK: exec.launch @cross_entropy_cross_entropy_grad(%arg1, %arg0, %arg2)
// CHECK-SAME: array<i64: 1, 1>
func.func @loss(%x: tensor<16x1000xf32>, %t: tensor<16xi64>, %g: tensor<16xf32>)
    -> (tensor<16xf32>, tensor<16x1000xf32>) {
  %l, %lse = graph.cross_entropy %x, %t : (tensor<16x1000xf32>, tensor<16xi64>) -> (tensor<16xf32>, tensor<16xf32>)
  %d = graph.cross_entropy_grad %g, %x, %t, %lse : (tensor<16xf32>, tensor<16x1000xf32>, tensor<16xi64>, tensor<16xf32>) -> tensor<16x1000xf32>
  return %l, %d : tensor<16xf32>, tensor<16x1000xf32>
}

// -----

// What a library computes between two ops keeps them apart.

// CHECK-LABEL: func.func @apart
// CHECK: exec.launch @neg(
// CHECK: graph.contract
// CHECK: exec.launch @add(
func.func @apart(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = graph.neg %x : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = graph.contract "ab,bc->ac" %0, %w : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = graph.add %1, %0 : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}

// -----

// What stands between two ops runs before both when it needs neither; then it
// does not keep them apart, and what comes after both still does.

// CHECK-LABEL: func.func @between
// CHECK: graph.contract
// CHECK: exec.launch @neg_add(
// CHECK: graph.contract
// CHECK: exec.launch @add(
// CHECK-NOT: exec.launch
func.func @between(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = graph.neg %x : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = graph.contract "ab,bc->ac" %x, %w : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = graph.add %0, %1 : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %3 = graph.contract "ab,bc->ac" %2, %w : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %4 = graph.add %3, %0 : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %4 : tensor<8x8xf32>
}

// -----

// Row values join the kernel of the rows, through a reshape.

// CHECK-LABEL: func.func @decomposed
// CHECK: exec.launch @mul_reduce
// CHECK-NOT: exec.launch
// CHECK: return
// CHECK: exec.kernel @mul_reduce{{.*}} row [6, 50]
func.func @decomposed(%x: tensor<2x3x50xf32>) -> tensor<2x3x50xf32> {
  %0 = graph.mul %x, %x : (tensor<2x3x50xf32>, tensor<2x3x50xf32>) -> tensor<2x3x50xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 2>} : (tensor<2x3x50xf32>) -> tensor<2x3xf32>
  %2 = graph.rsqrt %1 : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %3 = graph.reshape %2 : (tensor<2x3xf32>) -> tensor<2x3x1xf32>
  %4 = graph.mul %x, %3 : (tensor<2x3x50xf32>, tensor<2x3x1xf32>) -> tensor<2x3x50xf32>
  return %4 : tensor<2x3x50xf32>
}

// -----

// A norm over many tensors: a sum of squares each, and one small kernel.

// CHECK-LABEL: func.func @clip
// CHECK: exec.launch @mul_reduce(%arg0)
// CHECK: exec.launch @mul_reduce_0(%arg1)
// CHECK: exec.launch @add_sqrt
func.func @clip(%x: tensor<100x300xf32>, %y: tensor<7xf32>) -> tensor<f32> {
  %n = graph.global_norm %x, %y : (tensor<100x300xf32>, tensor<7xf32>) -> tensor<f32>
  return %n : tensor<f32>
}

// -----

// Strided operands are read where they lie.

// CHECK-LABEL: func.func @strided
// CHECK: exec.kernel @add map [32, 64]
// CHECK-SAME: (%[[X:.*]]: tensor<2x4x4x64xf32, #exec.layout<[1024, 64, 256, 1]>>
func.func @strided(%x: tensor<2x4x4x64xf32>, %y: tensor<2x4x4x64xf32>) -> tensor<2x4x4x64xf32> {
  %v = exec.view %x : tensor<2x4x4x64xf32> -> tensor<2x4x4x64xf32, #exec.layout<[1024, 64, 256, 1]>>
  %0 = graph.add %v, %y : (tensor<2x4x4x64xf32, #exec.layout<[1024, 64, 256, 1]>>, tensor<2x4x4x64xf32>) -> tensor<2x4x4x64xf32>
  return %0 : tensor<2x4x4x64xf32>
}

// -----

// A scalar that is updated, and the flag of a check that shares its operand:
// the update is in a kernel of its own, after the check.

// CHECK-LABEL: func.func @update
// CHECK-NEXT: %[[OK:.*]]:2 = exec.launch @mul_compare
// CHECK-NEXT: exec.check %[[OK]]#1, "not finite"
// CHECK-NEXT: %{{.*}} = exec.launch @sub(%arg0, %[[OK]]#0)
func.func @update(%w: tensor<f32>, %g: tensor<f32>) -> (tensor<f32> {exec.alias = 0 : i64}) {
  %n = graph.mul %g, %g : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %1 = graph.sub %w, %n : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %ok = graph.compare eq %n, %n : (tensor<f32>, tensor<f32>) -> tensor<i1>
  exec.check %ok, "not finite" : tensor<i1>
  return %1 : tensor<f32>
}

// -----

// Two kernels read a bf16 tensor in f32: each widens it as it loads it, and no
// f32 copy is stored. Below, an op without a kernel needs the copy.

// CHECK-LABEL: func.func @widen
// CHECK-SAME: (%[[X:.*]]: tensor<64x64xbf16>, %[[W:.*]]: tensor<64x64xf32>)
// CHECK: %[[SUM:.*]] = exec.launch @cast_reduce(%[[X]]) : (tensor<64x64xbf16>) -> tensor<f32>
// CHECK: %[[Y:.*]] = exec.launch @cast_div_sub(%[[X]], %[[SUM]], %[[W]])
// CHECK: return %[[Y]]
func.func @widen(%x: tensor<64x64xbf16>, %w: tensor<64x64xf32>)
    -> tensor<64x64xf32> {
  %0 = graph.cast %x : (tensor<64x64xbf16>) -> tensor<64x64xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 0, 1>} : (tensor<64x64xf32>) -> tensor<f32>
  %2 = graph.div %0, %1 : (tensor<64x64xf32>, tensor<f32>) -> tensor<64x64xf32>
  %3 = graph.sub %w, %2 : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %3 : tensor<64x64xf32>
}

// CHECK-LABEL: func.func @widen_for_memory
// CHECK: %[[SUM:.*]]:2 = exec.launch @cast_reduce{{.*}}(%{{.*}}) {{.*}} -> (tensor<f32>, tensor<64x64xf32>)
// CHECK: exec.launch @div_sub(%[[SUM]]#1, %[[SUM]]#0, %{{.*}})
func.func @widen_for_memory(%x: tensor<64x64xbf16>, %w: tensor<64x64xf32>)
    -> (tensor<64x64xf32>, tensor<64x64xf32>) {
  %0 = graph.cast %x : (tensor<64x64xbf16>) -> tensor<64x64xf32>
  %1 = graph.reduce sum %0 {dims = array<i64: 0, 1>} : (tensor<64x64xf32>) -> tensor<f32>
  %2 = graph.div %0, %1 : (tensor<64x64xf32>, tensor<f32>) -> tensor<64x64xf32>
  %3 = graph.sub %w, %2 : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %0, %3 : tensor<64x64xf32>, tensor<64x64xf32>
}

// -----

// What an update alone reads is computed with it, after the check: before it,
// `%g2` would be stored. A sum is small, and costs no second read of `%g`.

// CHECK-LABEL: func.func @prepare(
// CHECK-SAME: %[[P:[a-z0-9]+]]: tensor<64x64xf32> {exec.buffer = 0 : i64, exec.dies}, %[[G:[a-z0-9]+]]: tensor<64x64xf32>
// CHECK-NEXT: %[[S:.*]]:2 = exec.launch @{{.*}}(%[[G]])
// CHECK: exec.check
// CHECK: exec.launch @{{.*}}(%[[G]], {{.*}}%[[P]]{{.*}})
// CHECK-NEXT: return
func.func @prepare(%p: tensor<64x64xf32> {exec.buffer = 0 : i64, exec.dies}, %g: tensor<64x64xf32>)
    -> (tensor<64x64xf32> {exec.alias = 0 : i64, exec.update}) {
  %zero = graph.constant dense<0.0> : tensor<f32>
  %tenth = graph.constant dense<0.1> : tensor<f32>
  %none = graph.mul %g, %zero : (tensor<64x64xf32>, tensor<f32>) -> tensor<64x64xf32>
  %sum = graph.reduce sum %none {dims = array<i64: 0, 1>} : (tensor<64x64xf32>) -> tensor<f32>
  %ok = graph.compare eq %sum, %zero : (tensor<f32>, tensor<f32>) -> tensor<i1>
  exec.check %ok, "not finite" : tensor<i1>
  %squares = graph.mul %g, %g : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %norm = graph.reduce sum %squares {dims = array<i64: 0, 1>} : (tensor<64x64xf32>) -> tensor<f32>
  %g2 = graph.mul %g, %tenth : (tensor<64x64xf32>, tensor<f32>) -> tensor<64x64xf32>
  %step = graph.mul %g2, %norm : (tensor<64x64xf32>, tensor<f32>) -> tensor<64x64xf32>
  %next = graph.sub %p, %step : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %next : tensor<64x64xf32>
}
