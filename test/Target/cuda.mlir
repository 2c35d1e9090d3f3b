// RUN: cleave-translate --exec-to-cuda %s | FileCheck %s

// Each thread has four neighbours: one access of 16 bytes for each tensor. A
// comment has the lines that the kernel is of.
// CHECK: // cuda.mlir:{{[0-9]+}}, cuda.mlir:{{[0-9]+}}, cuda.mlir:
// CHECK-NEXT: // grid 12, block 64
// CHECK-LABEL: cleave_kernel_scale(const float *in0, const float *in1, float *out0, unsigned char *out1) {
// CHECK: const int i = blockIdx.x * 64 + threadIdx.x;
// CHECK: const int row = i / 192;
// CHECK: const int c = i % 192 * 4;
// CHECK: const float v[[S:[0-9]+]] = in1[0];
// CHECK: float v[[X:[0-9]+]][4];
// CHECK-NEXT: loadVector<16>(v[[X]], in0 + row * 768 + c);
// CHECK: for (int j = 0; j < 4; ++j) {
// CHECK-NEXT: const float v[[Y:[0-9]+]] = v[[X]][j] * v[[S]];
// CHECK: }
// CHECK-NEXT: storeVector<16>(out0 + row * 768 + c, v{{[0-9]+}});
// CHECK-NEXT: storeVector<4>(out1 + row * 768 + c, v{{[0-9]+}});
exec.kernel @scale map [4, 768] (%x: tensor<4x768xf32>, %s: tensor<f32>) -> (%y: tensor<4x768xf32>, %m: tensor<4x768xi1>)
    attributes {vector = 4 : i64, alignment = array<i64: 16, 4, 16, 4>} {
  %scale = exec.load %s at affine_map<(r, c) -> (0)> : tensor<f32> -> f32
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 768 + c)> : tensor<4x768xf32> -> f32
    %1 = arith.mulf %0, %scale : f32
    %2 = arith.cmpf olt, %1, %0 : f32
    exec.store %1, %y at affine_map<(r, c) -> (r * 768 + c)> : f32, tensor<4x768xf32>
    exec.store %2, %m at affine_map<(r, c) -> (r * 768 + c)> : i1, tensor<4x768xi1>
    exec.yield
  }
}

// Without the alignment, one element at a time.
// CHECK-LABEL: cleave_kernel_unaligned
// CHECK: const int c = i % 768;
// CHECK: const float v{{[0-9]+}} = in0[row * 768 + c];
exec.kernel @unaligned map [4, 768] (%x: tensor<4x768xf32>) -> (%y: tensor<4x768xf32>)
    attributes {vector = 4 : i64} {
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 768 + c)> : tensor<4x768xf32> -> f32
    exec.store %0, %y at affine_map<(r, c) -> (r * 768 + c)> : f32, tensor<4x768xf32>
    exec.yield
  }
}

// A block for a row; the kept row lies in registers.
// CHECK: // grid 4, block 128
// CHECK-LABEL: cleave_kernel_softmax
// What a later pass reads again does too.
// CHECK: float kept0[2][4];
// CHECK: const int row = blockIdx.x;
// CHECK: float row0[2][4];
// CHECK: for (int k = 0; k < 2; ++k) {
// CHECK-NEXT: const int c = (k * 128 + int(threadIdx.x)) * 4;
// CHECK-NEXT: if (c < 768) {
// CHECK-NEXT: loadVector<16>(row0[k], in0 + row * 768 + c);
// CHECK: reduceAll<128>(v{{[0-9]+}}, Max(), turn)
// CHECK: = row0[k][j];
// CHECK: kept0[k][j] = v
// CHECK: reduceAll<128>(v{{[0-9]+}}, Sum(), turn)
exec.kernel @softmax row [4, 768] (%x: tensor<4x768xf32>) -> (%y: tensor<4x768xf32>)
    attributes {vector = 4 : i64, threads = 128 : i64, alignment = array<i64: 16, 16>} {
  %max = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 768 + c)> : tensor<4x768xf32> -> f32
    %1 = exec.reduce max %0 : f32
    exec.yield %1 : f32
  }
  %e = exec.keep : tensor<768xf32>
  %sum = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 768 + c)> : tensor<4x768xf32> -> f32
    %1 = arith.subf %0, %max : f32
    %2 = math.exp %1 : f32
    exec.store %2, %e at affine_map<(r, c) -> (c)> : f32, tensor<768xf32>
    %3 = exec.reduce sum %2 : f32
    exec.yield %3 : f32
  }
  exec.pass {
    %0 = exec.load %e at affine_map<(r, c) -> (c)> : tensor<768xf32> -> f32
    %1 = arith.divf %0, %sum : f32
    exec.store %1, %y at affine_map<(r, c) -> (r * 768 + c)> : f32, tensor<4x768xf32>
    exec.yield
  }
}

// A row too long for registers lies in shared memory.
// CHECK: // grid 2, block 256, dynamic shared memory 160000
// CHECK-LABEL: cleave_kernel_long
// CHECK: float *const kept0 = reinterpret_cast<float *>(shared + 0);
exec.kernel @long row [2, 40000] (%x: tensor<2x40000xf32>) -> (%y: tensor<2x40000xf32>) {
  %e = exec.keep : tensor<40000xf32>
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 40000 + c)> : tensor<2x40000xf32> -> f32
    exec.store %0, %e at affine_map<(r, c) -> (c)> : f32, tensor<40000xf32>
    exec.yield
  }
  exec.pass {
    %0 = exec.load %e at affine_map<(r, c) -> (c)> : tensor<40000xf32> -> f32
    exec.store %0, %y at affine_map<(r, c) -> (r * 40000 + c)> : f32, tensor<2x40000xf32>
    exec.yield
  }
}

// So does one of memory that several passes read, with what is stored of it.
// CHECK: // grid 2, block 256, dynamic shared memory 80000
// CHECK-LABEL: cleave_kernel_reread
// CHECK: __half *const row0 = reinterpret_cast<__half *>(shared + 0);
// CHECK: loadVector<16>([[X:v[0-9]+]], in0 + row * 40000 + c);
// CHECK-NEXT: storeVector(row0 + c, [[X]]);
// CHECK: reduceAll
// CHECK-NOT: in0
// CHECK: loadVector(v{{[0-9]+}}, row0 + c);
exec.kernel @reread row [2, 40000] (%x: tensor<2x40000xf16>) -> (%y: tensor<2x40000xf16>)
    attributes {vector = 8 : i64, alignment = array<i64: 16, 16>} {
  %sum = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 40000 + c)> : tensor<2x40000xf16> -> f16
    %1 = arith.extf %0 : f16 to f32
    %2 = exec.reduce sum %1 : f32
    exec.yield %2 : f32
  }
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 40000 + c)> : tensor<2x40000xf16> -> f16
    %1 = arith.extf %0 : f16 to f32
    %2 = arith.divf %1, %sum : f32
    %3 = arith.truncf %2 : f32 to f16
    exec.store %3, %y at affine_map<(r, c) -> (r * 40000 + c)> : f16, tensor<2x40000xf16>
    exec.yield
  }
}

// A block for a group of rows, and a second stage.
// CHECK: // grid 4, block 256, scratch 1792
// CHECK-LABEL: cleave_kernel_columns(
// CHECK: float partial0[1][1];
// CHECK: for (int row = group * 16; row < last; ++row) {
// CHECK: partial0[k][0] = partial0[k][0] + v
// CHECK: partial0_row[c] = partial0[k][0];
// CHECK: // grid 4, block 32
// CHECK-LABEL: cleave_finish_columns(
// CHECK: for (int group = warp * 4; group < last; ++group) {
// CHECK: out0[c] = sum;
exec.kernel @columns column [64, 100] (%x: tensor<64x100xf32>) -> (%y: tensor<100xf32>)
    attributes {groups = 4 : i64} {
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 100 + c)> : tensor<64x100xf32> -> f32
    exec.accumulate sum %0, %y at affine_map<(r, c) -> (c)> : f32, tensor<100xf32>
    exec.yield
  }
}

// Teams of a block have a row each; those of the last rows have none. The sums
// of one group are the results.
// CHECK: // grid 1, block 128
// CHECK-NOT: scratch
// CHECK-LABEL: cleave_kernel_teams(
// CHECK: const int lane = threadIdx.x % 64, team = threadIdx.x / 64;
// CHECK: for (int first = group * 7; first < last; first += 2) {
// CHECK: const int row = min(first + team, last - 1);
// CHECK: const bool own = first + team < last;
// CHECK: if (own)
// CHECK-NEXT: partial0[k][0] = partial0[k][0] + v
// CHECK: reduceAll<64, 2>(
// CHECK: if (lane == 0 && own)
// CHECK-NEXT: out1[row] = v
// CHECK: reduceTeams<64, 2>(partial0[k], Sum(), k > 0);
// CHECK: if (team == 0) {
// CHECK: out0[c] = partial0[k][0];
exec.kernel @teams column [7, 50] (%x: tensor<7x50xf32>) -> (%y: tensor<50xf32>, %z: tensor<7xf32>)
    attributes {teams = 2 : i64, threads = 64 : i64} {
  %sum = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 50 + c)> : tensor<7x50xf32> -> f32
    exec.accumulate sum %0, %y at affine_map<(r, c) -> (c)> : f32, tensor<50xf32>
    %1 = exec.reduce sum %0 : f32
    exec.yield %1 : f32
  }
  exec.store %sum, %z at affine_map<(r, c) -> (r)> : f32, tensor<7xf32>
}

// CHECK-NOT: cleave_finish_teams

// Sixteen threads share the counters of 64 elements; an index that does not
// fit computes its own.
// CHECK-LABEL: cleave_kernel_dropout
// CHECK: philoxShared(v{{[0-9]+}}, row * 64 + c, v{{[0-9]+}}, 3, v{{[0-9]+}});
// CHECK: = philox((row * 64 + (c + j)) + 1, v{{[0-9]+}}, 4, v{{[0-9]+}});
exec.kernel @dropout map [4, 64] (%rng: tensor<2xi64>) -> (%y: tensor<4x64xi32>, %z: tensor<4x64xi32>)
    attributes {vector = 4 : i64, alignment = array<i64: 16, 16, 16>} {
  %seed = exec.load %rng at affine_map<(r, c) -> (0)> : tensor<2xi64> -> i64
  %step = exec.load %rng at affine_map<(r, c) -> (1)> : tensor<2xi64> -> i64
  exec.pass {
    %0 = exec.philox %seed, %step at affine_map<(r, c) -> (r * 64 + c)> {id = 3 : i64}
    %1 = exec.philox %seed, %step at affine_map<(r, c) -> (r * 64 + c + 1)> {id = 4 : i64}
    exec.store %0, %y at affine_map<(r, c) -> (r * 64 + c)> : i32, tensor<4x64xi32>
    exec.store %1, %z at affine_map<(r, c) -> (r * 64 + c)> : i32, tensor<4x64xi32>
    exec.yield
  }
}
