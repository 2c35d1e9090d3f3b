// RUN: cleave-translate --exec-to-llvm --cpu=x86-64-v3 %s | FileCheck %s
// RUN: cleave-translate --exec-to-llvm --cpu=x86-64-v4 %s | FileCheck %s --check-prefix=WIDE

// A whole number of vectors: no mask anywhere.
// CHECK-LABEL: define void @cleave_kernel_scale(ptr %args, i64 %begin, i64 %end, ptr %scratch)
// CHECK-NOT: masked
// CHECK: load <8 x float>
// CHECK: fmul <8 x float>
// CHECK: store <8 x float>
// CHECK-NOT: masked
// CHECK: }
// WIDE-LABEL: define void @cleave_kernel_scale
// WIDE: load <16 x float>
exec.kernel @scale map [4, 256] (%x: tensor<4x256xf32>, %s: tensor<f32>) -> (%y: tensor<4x256xf32>) {
  %scale = exec.load %s at affine_map<(r, c) -> (0)> : tensor<f32> -> f32
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 256 + c)> : tensor<4x256xf32> -> f32
    %1 = arith.mulf %0, %scale : f32
    exec.store %1, %y at affine_map<(r, c) -> (r * 256 + c)> : f32, tensor<4x256xf32>
    exec.yield
  }
}

// What is left of a row runs under a mask; the reduction skips what is not
// there. No multiply-add is contracted.
// CHECK-LABEL: define void @cleave_kernel_row_sum
// CHECK: fmul <8 x float>
// CHECK: fadd <8 x float>
// CHECK: call <8 x float> @llvm.masked.load
// CHECK: select <8 x i1>
// CHECK: shufflevector <8 x float>
exec.kernel @row_sum row [4, 1003] (%x: tensor<4x1003xf32>) -> (%y: tensor<4xf32>) {
  %sum = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 1003 + c)> : tensor<4x1003xf32> -> f32
    %1 = arith.mulf %0, %0 : f32
    %2 = exec.reduce sum %1 : f32
    exec.yield %2 : f32
  }
  exec.store %sum, %y at affine_map<(r, c) -> (r)> : f32, tensor<4xf32>
}

// One column: vectors of rows.
// CHECK-LABEL: define void @cleave_kernel_rows
// CHECK: load <8 x float>
// CHECK: call <8 x float> @llvm.sqrt
exec.kernel @rows map [1024, 1] (%x: tensor<1024xf32>) -> (%y: tensor<1024xf32>) {
  %0 = exec.load %x at affine_map<(r, c) -> (r)> : tensor<1024xf32> -> f32
  %1 = math.sqrt %0 : f32
  exec.store %1, %y at affine_map<(r, c) -> (r)> : f32, tensor<1024xf32>
}

// Heads of 64 lie side by side: still whole vectors, no gather.
// CHECK-LABEL: define void @cleave_kernel_heads
// CHECK-NOT: gather
// CHECK: load <8 x float>
// CHECK-NOT: gather
// CHECK: }
exec.kernel @heads map [6, 256] (%x: tensor<2x4x3x64xf32>) -> (%y: tensor<6x256xf32>) {
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> ((r floordiv 3) * 768 + (c floordiv 64) * 192 + (r mod 3) * 64 + c mod 64)> : tensor<2x4x3x64xf32> -> f32
    exec.store %0, %y at affine_map<(r, c) -> (r * 256 + c)> : f32, tensor<6x256xf32>
    exec.yield
  }
}

// CHECK-LABEL: define void @cleave_kernel_turn
// CHECK: call <8 x float> @llvm.masked.gather
exec.kernel @turn map [16, 64] (%x: tensor<64x16xf32>) -> (%y: tensor<16x64xf32>) {
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (c * 16 + r)> : tensor<64x16xf32> -> f32
    exec.store %0, %y at affine_map<(r, c) -> (r * 64 + c)> : f32, tensor<16x64xf32>
    exec.yield
  }
}

// CHECK-LABEL: define void @cleave_kernel_columns(
// CHECK-LABEL: define void @cleave_finish_columns(
exec.kernel @columns column [64, 32] (%x: tensor<64x32xf32>) -> (%y: tensor<32xf32>)
    attributes {groups = 4 : i64} {
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 32 + c)> : tensor<64x32xf32> -> f32
    exec.accumulate sum %0, %y at affine_map<(r, c) -> (c)> : f32, tensor<32xf32>
    exec.yield
  }
}
