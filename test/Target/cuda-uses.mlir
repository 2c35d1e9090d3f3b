// RUN: cleave-translate --exec-to-cuda %s | FileCheck %s

// Launches of many uses of a kernel, and of one. The blocks of a use are
// neighbours.

// CHECK: template <int uses, int arguments> struct Uses {
// CHECK-NEXT: void *at[uses][arguments];

// CHECK-LABEL: static __device__ __forceinline__ void
// CHECK-NEXT: cleave_kernel0_add(const unsigned block, const float *in0, const float *__restrict__ in1, float *out0) {
// CHECK: const int i = block * 64 + threadIdx.x;
// CHECK: loadVector<16>(
// CHECK: // grid 3, block 64
// CHECK-NEXT: extern "C" __global__ void __launch_bounds__(64)
// CHECK-NEXT: cleave_kernel_add(const float *in0, const float *__restrict__ in1, float *out0) {
// CHECK-NEXT: cleave_kernel0_add(blockIdx.x, in0, in1, out0);
// CHECK: // grid 9, block 64
// CHECK-NEXT: extern "C" __global__ void __launch_bounds__(64)
// CHECK-NEXT: cleave_kernel3_add(const __grid_constant__ Uses<3, 3> uses) {
// CHECK-NEXT: const unsigned use = blockIdx.x / 3;
// CHECK-NEXT: cleave_kernel0_add(blockIdx.x % 3,
// CHECK-NEXT: static_cast<const float *>(uses.at[use][0]),
// CHECK-NEXT: static_cast<const float *>(uses.at[use][1]),
// CHECK-NEXT: static_cast<float *>(uses.at[use][2]));
exec.kernel @add map [1, 768] (%a: tensor<768xf32>, %b: tensor<768xf32>) -> (%y: tensor<768xf32>)
    attributes {vector = 4 : i64, alignment = array<i64: 16, 16, 16>} {
  exec.pass {
    %0 = exec.load %a at affine_map<(r, c) -> (c)> : tensor<768xf32> -> f32
    %1 = exec.load %b at affine_map<(r, c) -> (c)> : tensor<768xf32> -> f32
    %2 = arith.addf %0, %1 : f32
    exec.store %2, %y at affine_map<(r, c) -> (c)> : f32, tensor<768xf32>
    exec.yield
  }
}

// Of two stages, each use has scratch memory of its own.
// CHECK-LABEL: cleave_kernel0_sums(const unsigned block,
// CHECK-SAME: char *__restrict__ scratch) {
// CHECK: const int group = block
// CHECK: cleave_kernel2_sums(const __grid_constant__ Uses<2, 2> uses, char *__restrict__ scratch) {
// CHECK: const unsigned use = blockIdx.x / [[GRID:[0-9]+]];
// CHECK: cleave_kernel0_sums(blockIdx.x % [[GRID]],
// CHECK: static_cast<float *>(uses.at[use][1]), scratch + use * 24576ll);
// CHECK: cleave_finish0_sums(const unsigned block,
// CHECK: // grid 48, block 64
// CHECK: cleave_finish2_sums(const __grid_constant__ Uses<2, 2> uses, char *__restrict__ scratch) {
// CHECK-NEXT: const unsigned use = blockIdx.x / 24;
// CHECK-NEXT: cleave_finish0_sums(blockIdx.x % 24,
exec.kernel @sums column [512, 768] (%a: tensor<512x768xf32>) -> (%y: tensor<768xf32>)
    attributes {vector = 4 : i64, threads = 192 : i64, groups = 8 : i64, alignment = array<i64: 16, 16>} {
  exec.pass {
    %0 = exec.load %a at affine_map<(r, c) -> (r * 768 + c)> : tensor<512x768xf32> -> f32
    exec.accumulate sum %0, %y at affine_map<(r, c) -> (c)> : f32, tensor<768xf32>
    exec.yield
  }
}

func.func private @part(%a: tensor<768xf32>, %b: tensor<768xf32>, %c: tensor<512x768xf32>)
    -> (tensor<768xf32>, tensor<768xf32>) {
  %0 = exec.launch @add(%a, %b) {inplace = [array<i64: 0, 0>]} : (tensor<768xf32>, tensor<768xf32>) -> tensor<768xf32>
  %1:2 = exec.launch @sums(%c, %c) {uses = 2 : i64}
      : (tensor<512x768xf32>, tensor<512x768xf32>) -> (tensor<768xf32>, tensor<768xf32>)
  %2:3 = exec.launch @add(%0, %b, %1#0, %b, %1#1, %a) {inplace = [array<i64: 0, 0>], uses = 3 : i64}
      : (tensor<768xf32>, tensor<768xf32>, tensor<768xf32>, tensor<768xf32>, tensor<768xf32>, tensor<768xf32>)
      -> (tensor<768xf32>, tensor<768xf32>, tensor<768xf32>)
  return %2#1, %2#2 : tensor<768xf32>, tensor<768xf32>
}
