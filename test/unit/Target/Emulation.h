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
/// With CLEAVE_ONE_LAUNCH the caller runs one kernel at a time, and nothing
/// here is per thread of the host.
/// $CLEAVE_THREAD_ORDER is the order in which blocks run and threads take
/// turns, warp by warp: "up" (the default), "down", or the seed of random ones.
/// $CLEAVE_FAKE_FAULT=barrier:LINE leaves out the barriers of a block that are
/// in this line of the text; $CLEAVE_FAKE_BARRIERS is a file to which the lines
/// of those that threads have reached are appended.
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
#undef __grid_constant__
#undef __constant__
#undef __noinline__
#undef __align__
#else
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct uint3 {
  unsigned x, y, z;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) {
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
#include <numeric>
#include <random>
#include <vector>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CLEAVE_UCONTEXT
#endif
#endif
#ifndef __x86_64__
#define CLEAVE_UCONTEXT
#endif
#ifdef CLEAVE_UCONTEXT
#include <ucontext.h>
#endif

#ifdef CLEAVE_ONE_LAUNCH
#define CLEAVE_LOCAL
#else
#define CLEAVE_LOCAL thread_local
#endif

#define __global__
#define __device__
#define __constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__
#ifdef CLEAVE_ONE_LAUNCH
// In a section, so that what a block leaves can be overwritten.
#define __shared__ static __attribute__((section("cleave_shared")))
extern "C"
    __attribute__((weak, visibility("hidden"))) char __start_cleave_shared[],
    __stop_cleave_shared[];
#else
#define __shared__ static thread_local
#endif

using std::max;
using std::min;
inline long long min(long long a, int b) { return a < b ? a : b; }
inline long long min(int a, long long b) { return a < b ? a : b; }

/// Of the fiber that runs.
inline CLEAVE_LOCAL uint3 threadIdx, blockIdx;
/// Of the launch.
inline CLEAVE_LOCAL uint3 gridDim, blockDim;
inline constexpr int warpSize = 32;
/// Dynamic shared memory of the block.
alignas(64) inline CLEAVE_LOCAL char shared[256 << 10];

namespace emulation {

/// A stack, and where the code that runs on it was left. A thread has one from
/// its first turn to its end; the next new thread then runs on it.
struct Fiber {
#ifdef CLEAVE_UCONTEXT
  ucontext_t context;
#else
  void *top;
#endif
  /// The lowest word, never written by a thread that keeps to its stack.
  uint64_t *bottom;
};
/// A barrier of some threads of a block.
struct Barrier {
  unsigned arrived = 0, generation = 0;
};
struct Thread {
  Fiber *fiber = nullptr;
  /// What it waits for, and the generation that it waits to be over.
  const Barrier *barrier = nullptr;
  unsigned generation = 0;
  bool done = false;
};
struct Group {
  unsigned begin, end;
};
/// What threads exchange: a value of each, in two exchanges.
constexpr size_t slotBytes = 24;
struct Slots {
  char bytes[2][1024][slotBytes];
};
/// 16 bytes that a thread has begun to copy to shared memory.
struct Copy {
  void *to;
  const void *from;
};

constexpr size_t stackBytes = 64 << 10, stacksAtOnce = 32;
constexpr uint64_t untouched = 0x5ca1ab1e0ddba11;
constexpr unsigned maxThreads = 1024;

inline CLEAVE_LOCAL Thread threads[maxThreads];
/// 0: of the block; from 1: of warps; from 64: of parts of them.
inline CLEAVE_LOCAL Barrier barriers[64 + 1024];
/// By the kind of barrier, so that uses by turns of the same one suffice.
inline CLEAVE_LOCAL Slots slots[3];
/// By thread.
inline CLEAVE_LOCAL std::vector<Copy> *copies;
inline CLEAVE_LOCAL std::vector<std::unique_ptr<Fiber>> *allFibers;
inline CLEAVE_LOCAL std::vector<Fiber *> *freeFibers;
inline CLEAVE_LOCAL Fiber scheduler;
inline CLEAVE_LOCAL unsigned current, blockThreads;
/// How many threads have ended, and how many wait at barriers.
inline CLEAVE_LOCAL unsigned ended, waiting;
/// The order of turns: some threads of `order` by turns, while any can go on.
inline CLEAVE_LOCAL unsigned order[maxThreads];
inline CLEAVE_LOCAL Group groups[maxThreads / 32 + 1];
inline CLEAVE_LOCAL unsigned groupCount, groupAt, orderAt, turns, roundTurns;
inline CLEAVE_LOCAL bool drawn;
/// The line without its barriers, and those with some that were reached.
inline CLEAVE_LOCAL int missing;
inline CLEAVE_LOCAL std::vector<bool> *reached;
/// Whether shared memory that no block has asked for is as filled.
inline CLEAVE_LOCAL bool sharedFilled;
inline CLEAVE_LOCAL std::mt19937 *random;
inline CLEAVE_LOCAL void (*body)(void *);
inline CLEAVE_LOCAL void *data;

inline void fail(const char *what) {
  std::fprintf(stderr, "emulated kernel: %s\n", what);
  std::abort();
}

inline void runFiber();

#ifdef CLEAVE_UCONTEXT
inline void switchFiber(Fiber &from, Fiber &to) {
  swapcontext(&from.context, &to.context);
}
inline void prepare(Fiber &fiber) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.bottom + 1;
  fiber.context.uc_stack.ss_size = stackBytes - 64;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, runFiber, 0);
}
#else
/// Stores the stack pointer to `from` and goes on where `to` was stored. Only
/// the registers that a call leaves as they are need to be kept.
__attribute__((naked, noinline)) inline void switchStack(void **, void *) {
  __asm__ volatile("pushq %%rbp\n\tpushq %%rbx\n\tpushq %%r12\n\t"
                   "pushq %%r13\n\tpushq %%r14\n\tpushq %%r15\n\t"
                   "movq %%rsp, (%%rdi)\n\tmovq %%rsi, %%rsp\n\t"
                   "popq %%r15\n\tpopq %%r14\n\tpopq %%r13\n\t"
                   "popq %%r12\n\tpopq %%rbx\n\tpopq %%rbp\n\tretq"
                   :
                   :
                   : "memory");
}
inline void switchFiber(Fiber &from, Fiber &to) {
  switchStack(&from.top, to.top);
}
inline void prepare(Fiber &fiber) {
  uintptr_t end = reinterpret_cast<uintptr_t>(fiber.bottom) + stackBytes - 64;
  void **top = reinterpret_cast<void **>(end & ~uintptr_t(15));
  // As if called from nowhere: six registers, and where to start.
  *--top = nullptr;
  *--top = reinterpret_cast<void *>(runFiber);
  for (int i = 0; i < 6; ++i)
    *--top = nullptr;
  fiber.top = top;
}
#endif

/// A stack for a thread that starts.
inline Fiber *takeFiber() {
  if (!allFibers) {
    allFibers = new std::vector<std::unique_ptr<Fiber>>;
    freeFibers = new std::vector<Fiber *>;
  }
  if (freeFibers->empty()) {
    // Stacks are not multiples of a power of two apart, which would map all of
    // their tops to the same lines of the caches.
    constexpr size_t apart = stackBytes + 9 * 64, many = stacksAtOnce;
    char *memory = static_cast<char *>(std::malloc(apart * many));
    for (size_t i = 0; i < many; ++i) {
      allFibers->push_back(std::make_unique<Fiber>());
      Fiber &fiber = *allFibers->back();
      fiber.bottom = reinterpret_cast<uint64_t *>(memory + i * apart);
      *fiber.bottom = untouched;
      prepare(fiber);
    }
    for (size_t i = 0; i < many; ++i)
      freeFibers->push_back((allFibers->end() - 1 - i)->get());
  }
  Fiber *fiber = freeFibers->back();
  freeFibers->pop_back();
  return fiber;
}

/// Before a library with kernels is closed.
inline void release() {
  delete random;
  random = nullptr;
  delete[] copies;
  copies = nullptr;
  delete reached;
  reached = nullptr;
  if (!allFibers)
    return;
  for (size_t i = 0; i < allFibers->size(); i += stacksAtOnce)
    std::free((*allFibers)[i]->bottom);
  delete allFibers;
  delete freeFibers;
  allFibers = nullptr;
}

/// Starts the turns of the group at `groupAt`.
inline void startPass() {
  orderAt = groups[groupAt].begin;
  turns = 0;
  if (drawn)
    std::shuffle(order + groups[groupAt].begin, order + groups[groupAt].end,
                 *random);
}
inline void startRound() {
  groupAt = roundTurns = 0;
  if (drawn)
    std::shuffle(groups, groups + groupCount, *random);
  startPass();
}

/// The thread whose turn it is.
inline unsigned pick() {
  for (;;) {
    for (unsigned end = groups[groupAt].end; orderAt < end;) {
      unsigned index = order[orderAt++];
      const Thread &thread = threads[index];
      if (thread.done ||
          (thread.barrier && thread.barrier->generation == thread.generation))
        continue;
      ++turns;
      return index;
    }
    roundTurns += turns;
    // One warp runs as far as it can without the others: what they read too
    // late, it has overwritten.
    if (turns) {
      startPass();
    } else if (++groupAt < groupCount) {
      startPass();
    } else {
      if (!roundTurns)
        fail("threads wait for each other");
      startRound();
    }
  }
}

/// What each stack runs: threads from their starts, one after another.
inline void runFiber() {
  for (;;) {
    Fiber *self = threads[current].fiber;
    body(data);
    threads[current].done = true;
    if (++ended == blockThreads) {
      freeFibers->push_back(self);
      switchFiber(*self, scheduler);
      continue;
    }
    current = threadIdx.x = pick();
    Thread &next = threads[current];
    if (!next.fiber) {
      next.fiber = self;
      continue;
    }
    freeFibers->push_back(self);
    switchFiber(*self, *next.fiber);
  }
}

inline void wait(unsigned id, unsigned count) {
  Barrier &barrier = barriers[id];
  if (++barrier.arrived == count) {
    waiting -= count - 1;
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  ++waiting;
  Thread &thread = threads[current];
  thread.barrier = &barrier;
  thread.generation = barrier.generation;
  unsigned index = pick();
  current = threadIdx.x = index;
  Thread &next = threads[index];
  if (!next.fiber)
    next.fiber = takeFiber();
  switchFiber(*thread.fiber, *next.fiber);
  thread.barrier = nullptr;
}

/// Runs the threads of a block to their ends.
inline void runBlock() {
  for (unsigned i = 0; i < blockThreads; ++i)
    threads[i] = {};
  ended = waiting = 0;
  startRound();
  current = threadIdx.x = pick();
  Fiber *first = threads[current].fiber = takeFiber();
  switchFiber(scheduler, *first);
  if (waiting)
    fail("a thread has left a barrier at which others wait");
  for (unsigned i = 0; copies && i < blockThreads; ++i)
    if (!copies[i].empty())
      fail("a thread has not waited for its copies");
}

/// Of dynamic shared memory that a block has not asked for.
constexpr char unasked = 0x6b;

/// Runs `what` in each of `count` threads of each block of a grid, with so many
/// bytes of dynamic shared memory.
inline void emulateGrid(unsigned gridX, unsigned gridY, unsigned gridZ,
                        unsigned count, unsigned sharedBytes,
                        void (*what)(void *), void *with) {
  const char *text = std::getenv("CLEAVE_THREAD_ORDER");
  bool down = text && !std::strcmp(text, "down");
  drawn = text && !down && std::strcmp(text, "up");
  if (drawn && !random)
    random = new std::mt19937(std::atoi(text));
  const char *fault = std::getenv("CLEAVE_FAKE_FAULT");
  missing =
      fault && !std::strncmp(fault, "barrier:", 8) ? std::atoi(fault + 8) : 0;
  const char *reachedFile = std::getenv("CLEAVE_FAKE_BARRIERS");
  if (reachedFile && !reached)
    reached = new std::vector<bool>;
  if (count > maxThreads || sharedBytes > sizeof shared)
    fail("a block is too large");
  gridDim.x = gridX, gridDim.y = gridY, gridDim.z = gridZ;
  blockDim.x = count, blockDim.y = blockDim.z = 1;
  threadIdx = {};
  blockThreads = count;
  body = what;
  data = with;
  for (Barrier &barrier : barriers)
    barrier = {};
  std::iota(order, order + count, 0u);
  groupCount = 0;
  for (unsigned i = 0; i < count; i += 32)
    groups[groupCount++] = {i, std::min(i + 32, count)};
  if (down)
    std::reverse(order, order + count);
  // Some of what lies behind the asked bytes is looked at after each block,
  // and more after all of them.
  char *end = shared + sizeof shared, *behind = shared + sharedBytes;
  if (!sharedFilled)
    std::memset(shared, unasked, sizeof shared);
  sharedFilled = true;
  auto check = [&](ptrdiff_t bytes) {
    bytes = std::min(bytes, end - behind);
    if (bytes &&
        (*behind != unasked || std::memcmp(behind, behind + 1, bytes - 1)))
      fail("writes behind its dynamic shared memory");
  };
  uint64_t blocks = uint64_t(gridX) * gridY * gridZ;
  std::vector<unsigned> blockOrder;
  if (drawn) {
    blockOrder.resize(blocks);
    std::iota(blockOrder.begin(), blockOrder.end(), 0u);
    std::shuffle(blockOrder.begin(), blockOrder.end(), *random);
  }
  for (uint64_t i = 0; i < blocks; ++i) {
    uint64_t block = drawn ? blockOrder[i] : down ? blocks - 1 - i : i;
    blockIdx.x = block % gridX;
    blockIdx.y = block / gridX % gridY;
    blockIdx.z = block / gridX / gridY;
    // What a block leaves in shared memory is nothing for the next to use.
    std::memset(shared, 0xff, sharedBytes);
#ifdef CLEAVE_ONE_LAUNCH
    // That of all kernels: where it is much, before the first block only.
    size_t arrays = __stop_cleave_shared - __start_cleave_shared;
    if (arrays <= (16 << 10) || i == 0)
      std::memset(__start_cleave_shared, 0xff, arrays);
#endif
    runBlock();
    check(512);
  }
  if (reachedFile)
    if (std::FILE *file = std::fopen(reachedFile, "a")) {
      for (size_t line = 0; line < reached->size(); ++line)
        if ((*reached)[line])
          std::fprintf(file, "%zu\n", line);
      std::fclose(file);
    }
  check(8 << 10);
  std::memset(shared, unasked, sharedBytes);
  for (const auto &fiber : *allFibers)
    if (*fiber->bottom != untouched)
      fail("a thread has overrun its stack");
}

/// A grid of one dimension, with all of shared memory.
inline void emulate(unsigned blocks, unsigned threads, void (*what)(void *),
                    void *with) {
  emulateGrid(blocks, 1, 1, threads, sizeof shared, what, with);
}

/// A barrier, and how many threads meet there.
struct Meeting {
  unsigned id, count;
  /// Of the slots: 0 for warps, 1 for parts of them, 2 for the block.
  unsigned kind;
};
/// Of the threads of the own warp that `mask` names.
inline Meeting meetWarp(unsigned mask) {
  unsigned base = threadIdx.x & ~31u, size = std::min(blockThreads - base, 32u);
  unsigned all = size == 32 ? ~0u : (1u << size) - 1;
  mask &= all;
  if (mask == all)
    return {1 + base / 32, size, 0};
  return {64 + base + __builtin_ctz(mask | 1u << 31),
          unsigned(__builtin_popcount(mask)), 1};
}
/// Of `width` threads next to each other.
inline Meeting meetPart(unsigned width) {
  if (width == 32)
    return meetWarp(~0u);
  unsigned base = threadIdx.x / width * width;
  return {64 + base, std::min(blockThreads - base, width), 1};
}

/// Gives the own value to others; returns where theirs are until the next
/// exchange but one.
template <class T>
const char (*publish(const T &x, const Meeting &meeting)) [slotBytes] {
  static_assert(sizeof x <= slotBytes);
  auto *own = slots[meeting.kind].bytes[barriers[meeting.id].generation & 1];
  std::memcpy(own[threadIdx.x], &x, sizeof x);
  wait(meeting.id, meeting.count);
  return own;
}

template <class T>
T exchange(T x, unsigned source, const Meeting &meeting) {
  const auto *all = publish(x, meeting);
  std::memcpy(&x, all[source < maxThreads ? source : threadIdx.x], sizeof x);
  return x;
}

template <class T> T atomically(T *at, T next) {
  T old = *at;
  *at = next;
  return old;
}
template <class To, class From> To bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &x, sizeof result);
  return result;
}

//===----------------------------------------------------------------------===//
// Products of 16-bit numbers
//===----------------------------------------------------------------------===//

/// The nearest number, the even one of two.
inline unsigned roundBfloat16(float x) {
  unsigned word = bits<unsigned>(x);
  if (x != x)
    return word >> 16 | 0x40;
  return (word + 0x7fff + (word >> 16 & 1)) >> 16;
}
inline unsigned roundFloat16(float x) {
  unsigned word = bits<unsigned>(x), sign = word >> 16 & 0x8000;
  float size = std::fabs(x);
  if (x != x)
    return sign | 0x7e00;
  if (size >= 65520.0f)
    return sign | 0x7c00;
  // Subnormal numbers are multiples of 2^-24, which this sum rounds to.
  if (size < 0x1p-14f)
    return sign | (bits<unsigned>(size + 0.5f) - bits<unsigned>(0.5f));
  word = (word & 0x7fffffff) - (112u << 23);
  return sign | (word + 0xfff + (word >> 13 & 1)) >> 13;
}
inline float widenFloat16(unsigned short x) {
  unsigned size = x & 0x7fff, sign = unsigned(x & 0x8000) << 16;
  if (size >= 0x7c00)
    return bits<float>(sign | 0x7f800000 | (size & 0x3ff) << 13);
  if (size < 0x400)
    return sign ? -float(size) * 0x1p-24f : float(size) * 0x1p-24f;
  return bits<float>(sign | ((size << 13) + (112u << 23)));
}

/// d += a b, of 16 rows, 8 columns and 16 products, as
/// mma.m16n8k16.row.col has them in the threads of a warp: of d, the rows
/// lane / 4 and that + 8, and the columns 2 * (lane % 4) and that + 1; of a the
/// same rows, and these columns before those + 8; of b the column lane / 4, and
/// such rows.
template <class Widen>
void multiplyTiles(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                   unsigned b1, Widen widen) {
  struct Factors {
    unsigned a[4], b[2];
  } own = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const auto *all = publish(own, meetWarp(~0u)) + (threadIdx.x & ~31u);
  unsigned lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
  for (unsigned thread = 0; thread < 16; ++thread) {
    // Four neighbours have what is multiplied, of two rows or two columns.
    unsigned k = thread / 4, part = thread % 4;
    Factors left, right;
    std::memcpy(&left, all[row * 4 + part], sizeof left);
    unsigned high = k % 2, upper = k / 2;
    std::memcpy(&right, all[(column + upper) * 4 + part], sizeof right);
    for (unsigned half = 0; half < 2; ++half)
      for (unsigned bit = 0; bit < 32; bit += 16)
        d[2 * half + upper] +=
            widen((unsigned short)(left.a[half + 2 * high] >> bit)) *
            widen((unsigned short)(right.b[high] >> bit));
  }
}

/// As ldmatrix.x4 loads four matrices of 8 x 8 numbers.
inline void loadMatrices(unsigned (&x)[4], const unsigned short *row,
                         bool transposed) {
  if (reinterpret_cast<uintptr_t>(row) % 16)
    fail("a row of a matrix is not aligned");
  const auto *all = publish(row, meetWarp(~0u)) + (threadIdx.x & ~31u);
  unsigned lane = threadIdx.x % 32, r = lane / 4, c = lane % 4 * 2;
  for (unsigned i = 0; i < 4; ++i) {
    auto at = [&](unsigned r, unsigned c) -> unsigned {
      const unsigned short *own;
      std::memcpy(&own, all[8 * i + r], sizeof own);
      return own[c];
    };
    x[i] = transposed ? at(c, r) | at(c + 1, r) << 16
                      : at(r, c) | at(r, c + 1) << 16;
  }
}

/// Done as late as the device may.
inline void beginCopy(void *to, const void *from) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) %
      16)
    fail("a copy is not aligned");
  if (!copies)
    copies = new std::vector<Copy>[maxThreads];
  copies[threadIdx.x].push_back({to, from});
}
inline void waitCopies() {
  if (!copies)
    return;
  for (const Copy &copy : copies[threadIdx.x])
    std::memcpy(copy.to, copy.from, 16);
  copies[threadIdx.x].clear();
}

} // namespace emulation

inline void __syncthreads(int line = __builtin_LINE()) {
  if (emulation::reached) {
    if (size_t(line) >= emulation::reached->size())
      emulation::reached->resize(line + 1);
    (*emulation::reached)[line] = true;
  }
  if (line != emulation::missing)
    emulation::wait(0, emulation::blockThreads);
}
inline int __syncthreads_count(int predicate) {
  const auto *all =
      emulation::publish<int>(predicate != 0, {0, emulation::blockThreads, 2});
  int count = 0;
  for (unsigned i = 0; i < emulation::blockThreads; ++i)
    count += all[i][0];
  return count;
}
inline int __syncthreads_or(int predicate) {
  return __syncthreads_count(predicate) != 0;
}
inline int __syncthreads_and(int predicate) {
  return __syncthreads_count(!predicate) == 0;
}
inline void __syncwarp(unsigned mask = ~0u) {
  emulation::Meeting meeting = emulation::meetWarp(mask);
  emulation::wait(meeting.id, meeting.count);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
template <class T>
T __shfl_xor_sync(unsigned mask, T x, int step, int width = 32) {
  unsigned own = threadIdx.x % 32, source = own ^ step;
  if (source / width > own / width)
    source = own;
  return emulation::exchange(x, (threadIdx.x & ~31u) + source,
                             emulation::meetWarp(mask));
}
template <class T> T __shfl_sync(unsigned mask, T x, int lane, int width = 32) {
  unsigned base = threadIdx.x / width * width;
  return emulation::exchange(x, base + (lane & (width - 1)),
                             width == 32 ? emulation::meetWarp(mask)
                                         : emulation::meetPart(width));
}
template <class T>
T __shfl_down_sync(unsigned mask, T x, unsigned step, int width = 32) {
  unsigned own = threadIdx.x, source = own % width + step;
  source = source < unsigned(width) ? own + step : own;
  return emulation::exchange(x, source, emulation::meetWarp(mask));
}
template <class T>
T __shfl_up_sync(unsigned mask, T x, unsigned step, int width = 32) {
  unsigned own = threadIdx.x;
  return emulation::exchange(x, own % width >= step ? own - step : own,
                             emulation::meetWarp(mask));
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const auto *all =
      emulation::publish<int>(predicate != 0, emulation::meetWarp(mask));
  unsigned base = threadIdx.x & ~31u, result = 0;
  for (unsigned i = 0; i < 32 && base + i < blockDim.x; ++i)
    if (mask >> i & 1)
      result |= unsigned(all[base + i][0]) << i;
  return result;
}
inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, !predicate) == 0;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
// The fibers of one block at a time run: nothing comes between.
inline int atomicAdd(int *at, int x) {
  return emulation::atomically(at, int(unsigned(*at) + unsigned(x)));
}
inline unsigned atomicAdd(unsigned *at, unsigned x) {
  return emulation::atomically(at, *at + x);
}
inline unsigned long long atomicAdd(unsigned long long *at,
                                    unsigned long long x) {
  return emulation::atomically(at, *at + x);
}
inline float atomicAdd(float *at, float x) {
  return emulation::atomically(at, *at + x);
}
inline double atomicAdd(double *at, double x) {
  return emulation::atomically(at, *at + x);
}
template <class T> T atomicExch(T *at, T x) {
  return emulation::atomically(at, x);
}
template <class T> T atomicCAS(T *at, T compare, T x) {
  return emulation::atomically(at, *at == compare ? x : *at);
}
inline unsigned atomicInc(unsigned *at, unsigned last) {
  return emulation::atomically(at, *at >= last ? 0 : *at + 1);
}
inline int atomicMax(int *at, int x) {
  return emulation::atomically(at, std::max(*at, x));
}
inline unsigned atomicMax(unsigned *at, unsigned x) {
  return emulation::atomically(at, std::max(*at, x));
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return (uint64_t(a) * b) >> 32;
}
inline float __int_as_float(int x) { return emulation::bits<float>(x); }
inline int __float_as_int(float x) { return emulation::bits<int>(x); }
inline float __uint_as_float(unsigned x) { return emulation::bits<float>(x); }
inline unsigned __float_as_uint(float x) {
  return emulation::bits<unsigned>(x);
}
inline double __longlong_as_double(long long x) {
  return emulation::bits<double>(x);
}
inline int __float2int_rn(float x) { return int(std::nearbyint(x)); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1 / a; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
template <class T> T __ldg(const T *at) { return *at; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }

#endif // CLEAVE_TEST_UNIT_TARGET_EMULATION_H
