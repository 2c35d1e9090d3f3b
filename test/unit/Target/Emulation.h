//===- Emulation.h - CUDA kernels on the host -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// What generated CUDA C++ needs to be compiled as C++ and executed without a
/// device: each thread of a block is a fiber, and barriers and shuffles switch
/// between fibers. The text is included after this header. With
/// CLEAVE_CUDA_TYPES the types of narrow floats are those of NVIDIA's headers.
/// $CLEAVE_THREAD_ORDER is the order in which threads take turns: "up" (the
/// default), "down", or the seed of random ones, warp by warp.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TEST_UNIT_TARGET_EMULATION_H
#define CLEAVE_TEST_UNIT_TARGET_EMULATION_H

#ifdef CLEAVE_CUDA_TYPES
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#undef __global__
#undef __device__
#undef __forceinline__
#undef __shared__
#undef __launch_bounds__
#else
struct uint2 {
  unsigned x, y;
};
struct uint3 {
  unsigned x, y, z;
};
struct uint4 {
  unsigned x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __shared__ static thread_local

using std::max;
using std::min;
inline long long min(long long a, int b) { return a < b ? a : b; }
inline long long min(int a, long long b) { return a < b ? a : b; }

/// Of the fiber that runs.
inline thread_local uint3 threadIdx, blockIdx;
/// Dynamic shared memory of the block.
alignas(64) inline thread_local char shared[256 << 10];

namespace emulation {

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool done = false;
};
/// A barrier of some threads of a block.
struct Barrier {
  unsigned arrived = 0, generation = 0;
};

inline thread_local std::vector<Fiber> fibers;
inline thread_local Barrier barriers[4096];
inline thread_local char slots[1024][16];
inline thread_local ucontext_t scheduler;
inline thread_local unsigned current, blockThreads;
/// Grows with each thread that arrives at a barrier or ends.
inline thread_local uint64_t progress;
inline thread_local void (*body)(void *);
inline thread_local void *data;

inline void fail(const char *what) {
  std::fprintf(stderr, "emulated kernel: %s\n", what);
  std::abort();
}

inline void start() {
  body(data);
  fibers[current].done = true;
  ++progress;
}

inline void wait(unsigned id, unsigned count) {
  Barrier &barrier = barriers[id];
  unsigned generation = barrier.generation;
  ++progress;
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  while (barrier.generation == generation)
    swapcontext(&fibers[current].context, &scheduler);
}

/// Gives each of these threads a turn; returns how many have ended in it.
inline unsigned takeTurns(const std::vector<unsigned> &order) {
  unsigned ended = 0;
  for (unsigned thread : order) {
    if (fibers[thread].done)
      continue;
    current = threadIdx.x = thread;
    swapcontext(&scheduler, &fibers[thread].context);
    ended += fibers[thread].done;
  }
  return ended;
}

/// Runs the threads of a block to their ends.
inline void runBlock(unsigned threads) {
  const char *text = std::getenv("CLEAVE_THREAD_ORDER");
  bool drawn = text && std::strcmp(text, "up") && std::strcmp(text, "down");
  static thread_local std::mt19937 random(drawn ? std::atoi(text) : 0);
  // In a drawn order one warp runs as far as it can without the others: what
  // they read too late, it has overwritten.
  std::vector<std::vector<unsigned>> groups;
  for (unsigned i = 0; i < threads; ++i) {
    if (groups.empty() || (drawn && i % 32 == 0))
      groups.emplace_back();
    groups.back().push_back(i);
  }
  if (text && !std::strcmp(text, "down"))
    std::reverse(groups[0].begin(), groups[0].end());
  for (unsigned ended = 0; ended < threads;) {
    uint64_t before = progress;
    if (drawn)
      std::shuffle(groups.begin(), groups.end(), random);
    for (std::vector<unsigned> &group : groups) {
      uint64_t last;
      do {
        last = progress;
        if (drawn)
          std::shuffle(group.begin(), group.end(), random);
        ended += takeTurns(group);
      } while (progress != last);
    }
    if (progress == before)
      fail("threads wait for each other");
  }
}

/// Runs `what` in each of `threads` threads of each of `blocks` blocks.
inline void emulate(unsigned blocks, unsigned threads, void (*what)(void *),
                    void *with) {
  constexpr size_t stackBytes = 64 << 10;
  blockThreads = threads;
  body = what;
  data = with;
  if (fibers.size() < threads)
    fibers.resize(threads);
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    for (Barrier &barrier : barriers)
      barrier = {};
    // What a block leaves in shared memory is nothing for the next to use.
    std::memset(shared, 0xff, sizeof shared);
    for (unsigned i = 0; i < threads; ++i) {
      Fiber &fiber = fibers[i];
      if (!fiber.stack)
        fiber.stack.reset(new char[stackBytes]);
      fiber.done = false;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = stackBytes;
      fiber.context.uc_link = &scheduler;
      makecontext(&fiber.context, start, 0);
    }
    runBlock(threads);
    for (const Barrier &barrier : barriers)
      if (barrier.arrived)
        fail("a thread has left a barrier at which others wait");
  }
}

template <class T>
T exchange(T x, unsigned source, unsigned id, unsigned count) {
  std::memcpy(slots[threadIdx.x], &x, sizeof x);
  wait(id, count);
  std::memcpy(&x, slots[source], sizeof x);
  wait(id, count);
  return x;
}

} // namespace emulation

inline void __syncthreads() { emulation::wait(0, emulation::blockThreads); }
template <class T> T __shfl_xor_sync(unsigned, T x, int step) {
  unsigned own = threadIdx.x;
  return emulation::exchange(x, own ^ step, 1 + own / 32, 32);
}
template <class T> T __shfl_sync(unsigned, T x, int lane, int width) {
  unsigned group = threadIdx.x / width;
  return emulation::exchange(x, group * width + lane, 64 + group, width);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return (uint64_t(a) * b) >> 32;
}
inline float __int_as_float(int bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline double __longlong_as_double(long long bits) {
  double x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }

#endif // CLEAVE_TEST_UNIT_TARGET_EMULATION_H
