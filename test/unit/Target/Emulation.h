//===- Emulation.h - CUDA kernels on one thread -----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// What generated CUDA C++ needs to be compiled as C++ and executed without a
/// device: each thread of a block is a fiber, and barriers and shuffles switch
/// between fibers. The text is included after this header.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TEST_UNIT_TARGET_EMULATION_H
#define CLEAVE_TEST_UNIT_TARGET_EMULATION_H

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __shared__ static

struct Index {
  unsigned x;
};
struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
using std::max;
using std::min;
inline long long min(long long a, int b) { return a < b ? a : b; }
inline long long min(int a, long long b) { return a < b ? a : b; }

/// Of the fiber that runs.
extern Index threadIdx, blockIdx;
/// Dynamic shared memory of the block.
extern char shared[256 << 10];

/// Waits for `count` threads at barrier `id` of the block.
void emulationWait(int id, int count);
/// 16 bytes of each thread of the block, for shuffles.
extern char emulationSlots[1024][16];

/// Runs `body` in each of `threads` threads of each of `blocks` blocks.
void emulate(int blocks, int threads, void (*body)(void *), void *data);

inline void __syncthreads() { emulationWait(0, -1); }

template <class T> T exchange(T x, int source, int barrier, int count) {
  memcpy(emulationSlots[threadIdx.x], &x, sizeof x);
  emulationWait(barrier, count);
  memcpy(&x, emulationSlots[source], sizeof x);
  emulationWait(barrier, count);
  return x;
}
template <class T> T __shfl_xor_sync(unsigned, T x, int step) {
  int warp = threadIdx.x / 32;
  return exchange(x, threadIdx.x ^ step, 1 + warp, 32);
}
template <class T> T __shfl_sync(unsigned, T x, int lane, int width) {
  int group = threadIdx.x / width;
  return exchange(x, group * width + lane, 64 + group, width);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return (uint64_t(a) * b) >> 32;
}
inline float __int_as_float(int bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }

#endif // CLEAVE_TEST_UNIT_TARGET_EMULATION_H
