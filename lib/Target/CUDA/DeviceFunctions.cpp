//===- DeviceFunctions.cpp - Device functions that CUDA kernels share -----===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "KernelPrinter.h"

/// The text of the device functions.
static constexpr llvm::StringLiteral source = R"(// Compile with -fmad=false.

template <int Bytes> struct Word;
template <> struct Word<1> { using type = unsigned char; };
template <> struct Word<2> { using type = unsigned short; };
template <> struct Word<4> { using type = unsigned int; };
template <> struct Word<8> { using type = uint2; };
template <> struct Word<16> { using type = uint4; };

// N neighbours in accesses of as many bytes, or of all that they have.
template <int Bytes = 16, class T, int N>
__device__ __forceinline__ void loadVector(T (&x)[N], const T *p) {
  constexpr int bytes = int(sizeof(T)) * N < Bytes ? sizeof(T) * N : Bytes;
  using W = typename Word<bytes>::type;
#pragma unroll
  for (int k = 0; k < int(sizeof(T) * N / bytes); ++k) {
    W w = reinterpret_cast<const W *>(p)[k];
    memcpy(&x[k * (bytes / sizeof(T))], &w, bytes);
  }
}

template <int Bytes = 16, class T, int N>
__device__ __forceinline__ void storeVector(T *p, const T (&x)[N]) {
  constexpr int bytes = int(sizeof(T)) * N < Bytes ? sizeof(T) * N : Bytes;
  using W = typename Word<bytes>::type;
#pragma unroll
  for (int k = 0; k < int(sizeof(T) * N / bytes); ++k) {
    // A copy of memory would become one of smaller words.
    union {
      W word;
      T part[bytes / sizeof(T)];
    } own;
#pragma unroll
    for (int i = 0; i < int(bytes / sizeof(T)); ++i)
      own.part[i] = x[k * int(bytes / sizeof(T)) + i];
    reinterpret_cast<W *>(p)[k] = own.word;
  }
}

// Reductions; maxima and minima of floats are NaN if any element is.
struct Sum {
  template <class T> __device__ T operator()(T a, T b) const { return a + b; }
};
struct Max {
  template <class T> __device__ T operator()(T a, T b) const {
    return b > a || b != b ? b : a;
  }
};
struct Min {
  template <class T> __device__ T operator()(T a, T b) const {
    return b < a || b != b ? b : a;
  }
};

// Waits for the threads of one's team. Other teams go on.
template <int Threads, int Teams> __device__ __forceinline__ void waitForTeam() {
#ifdef __CUDACC__
  if constexpr (Teams > 1)
    asm volatile("bar.sync %0, %1;" ::"r"(1 + int(threadIdx.x) / Threads),
                 "n"(Threads)
                 : "memory");
  else
    __syncthreads();
#else
  __syncthreads();
#endif
}

// Combines each of `x` over the threads of each team of the block, in a fixed
// order; all of them get the results. Calls take two memories by turns: who
// waits in one has read what the last one left.
template <int Threads, int Teams = 1, class T, int N, class Op>
__device__ __forceinline__ void reduceAll(T (&x)[N], Op op, int &turn) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
#pragma unroll
    for (int i = 0; i < N; ++i)
      x[i] = op(x[i], (T)__shfl_xor_sync(0xffffffffu, x[i], step));
  if constexpr (Threads > 32) {
    constexpr int warps = Threads / 32;
    __shared__ T partial[2][N][Teams * warps];
    const int first = Teams == 1 ? 0 : int(threadIdx.x) / Threads * warps;
    if (threadIdx.x % 32 == 0)
#pragma unroll
      for (int i = 0; i < N; ++i)
        partial[turn][i][threadIdx.x / 32] = x[i];
    waitForTeam<Threads, Teams>();
#pragma unroll
    for (int i = 0; i < N; ++i) {
      x[i] = partial[turn][i][first];
#pragma unroll
      for (int warp = 1; warp < warps; ++warp)
        x[i] = op(x[i], partial[turn][i][first + warp]);
    }
    turn ^= 1;
  }
}

template <int Threads, int Teams = 1, class T, class Op>
__device__ __forceinline__ T reduceBlock(T x, Op op, int &turn) {
  T all[1] = {x};
  reduceAll<Threads, Teams>(all, op, turn);
  return all[0];
}

// Combines each of `x` over the threads of all teams that have the same number
// in theirs, in the order of teams; those of the first get the results. `again`:
// the memory for it may still be read.
template <int Threads, int Teams, class T, int N, class Op>
__device__ __forceinline__ void reduceTeams(T (&x)[N], Op op, bool again) {
  __shared__ T partial[Teams - 1][N][Threads];
  const int lane = int(threadIdx.x) % Threads;
  const int team = int(threadIdx.x) / Threads;
  if (again)
    __syncthreads();
  if (team > 0)
#pragma unroll
    for (int i = 0; i < N; ++i)
      partial[team - 1][i][lane] = x[i];
  __syncthreads();
  if (team == 0)
#pragma unroll
    for (int other = 0; other < Teams - 1; ++other)
#pragma unroll
      for (int i = 0; i < N; ++i)
        x[i] = op(x[i], partial[other][i][lane]);
}

// Combines `x` of the threads of all warps that have the same lane, in the order
// of warps; those of the first get the result.
template <int Warps, class T, class Op>
__device__ __forceinline__ T reduceWarps(T x, Op op) {
  __shared__ T partial[Warps][32];
  partial[threadIdx.x / 32][threadIdx.x % 32] = x;
  __syncthreads();
  if (threadIdx.x < 32)
    for (int warp = 1; warp < Warps; ++warp)
      x = op(x, partial[warp][threadIdx.x]);
  return x;
}

// Of kernels whose results have 16 bits or fewer: exp(x) with a relative error
// below 2^-22 (1 + |x|), and 0 below 2^-126; and x / y to the last two bits.
__device__ __forceinline__ float fastExp(float x) {
#ifdef __CUDACC__
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.44269504f));
  return result;
#else
  return expf(x);
#endif
}
__device__ __forceinline__ float fastDivide(float x, float y) {
#ifdef __CUDACC__
  float result;
  asm("div.full.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
#else
  return x / y;
#endif
}

struct Exp {
  __device__ float operator()(float x) const { return expf(x); }
};
struct FastExp {
  __device__ float operator()(float x) const { return fastExp(x); }
};

// Adds exp(x - most) for each of `x` to the sum of such terms, for the largest x
// so far. While that is -inf, terms are zero; where no x is larger, the block's
// sum is NaN, as it is for an x that is NaN or inf.
template <class E, int N>
__device__ __forceinline__ void addExponentials(float &most, float &sum,
                                                const float (&x)[N], E exp) {
  float larger = most;
#pragma unroll
  for (int i = 0; i < N; ++i)
    larger = fmaxf(larger, x[i]);
  const float below = larger == -__int_as_float(0x7f800000) ? 0.0f : larger;
  sum = sum * exp(most - below);
#pragma unroll
  for (int i = 0; i < N; ++i)
    sum += exp(x[i] - below);
  most = larger;
}

// An integer that is compared with numbers of columns; no column if it is none.
__device__ __forceinline__ int asColumn(long long x) {
  return x == int(x) ? int(x) : -1;
}

template <class T> __device__ __forceinline__ T floorDivide(T a, T b) {
  T q = a / b;
  return q - ((a % b != 0) && ((a < 0) != (b < 0)) ? 1 : 0);
}
template <class T> __device__ __forceinline__ T floorModulo(T a, T b) {
  T r = a % b;
  return r < 0 ? r + b : r;
}

// Philox4x32-10: four words from a counter.
__device__ __forceinline__ uint4 philoxBlock(unsigned long long c,
                                             unsigned long long seed,
                                             unsigned id, unsigned step) {
  uint4 s = make_uint4(unsigned(c), unsigned(c >> 32), id, step);
  unsigned k0 = unsigned(seed), k1 = unsigned(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    unsigned h0 = __umulhi(0xD2511F53u, s.x), l0 = 0xD2511F53u * s.x;
    unsigned h1 = __umulhi(0xCD9E8D57u, s.z), l1 = 0xCD9E8D57u * s.z;
    s = make_uint4(h1 ^ s.y ^ k0, l1, h0 ^ s.w ^ k1, l0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return s;
}

__device__ __forceinline__ unsigned pick(uint4 s, unsigned word) {
  unsigned low = word & 1 ? s.y : s.x, high = word & 1 ? s.w : s.z;
  return word & 2 ? high : low;
}

// The draw of element i.
__device__ __forceinline__ int philox(long long i, long long seed, unsigned id,
                                      long long step) {
  unsigned long long u = i;
  return pick(philoxBlock(u / 64 * 16 + u % 16, seed, id, unsigned(step)),
              unsigned(u / 16 % 4));
}

// The draws of N elements (4, 8 or 16) from i on, in each of 64 / N neighbouring
// threads that together have 64 elements, of 16 counters. Each thread computes
// N / 4 counters and gives away all their words, one in each round, so that in
// no round two take from the same one: thread `lane` begins at element `turn`.
template <int N>
__device__ __forceinline__ void philoxShared(int (&x)[N], long long i,
                                             long long seed, unsigned id,
                                             long long step) {
  constexpr unsigned lanes = 64 / N, own = N / 4, period = N == 8 ? 8 : 4;
  unsigned lane = threadIdx.x % lanes;
  unsigned mask = ((1u << lanes) - 1) << (threadIdx.x % 32 - lane);
  unsigned long long u = i;
  uint4 s[own];
#pragma unroll
  for (unsigned k = 0; k < own; ++k)
    s[k] = philoxBlock(u / 64 * 16 + lane + k * lanes, seed, id,
                       unsigned(step));
  unsigned turn = N == 4 ? lane / 4 : lane;
#pragma unroll
  for (unsigned r = 0; r < N; ++r) {
    unsigned j = (turn + r) % period, to = (lane - r) % period;
    uint4 t = N == 4 ? s[0] : N == 16 ? s[r / 4] : to % 2 ? s[own - 1] : s[0];
    x[r] = __shfl_sync(mask, pick(t, N == 8 ? to / 2 : to),
                       N == 4 ? lane % 4 * 4 + j : j, lanes);
  }
  // Round r had element turn + r.
#pragma unroll
  for (unsigned by = 1; by < period; by *= 2) {
    int y[N];
#pragma unroll
    for (unsigned r = 0; r < N; ++r)
      y[r] = x[r];
#pragma unroll
    for (unsigned r = 0; r < N; ++r)
      x[r] = turn & by ? y[r / period * period + (r - by) % period] : y[r];
  }
}

)";

llvm::StringRef cleave::cuda::deviceFunctions() { return source; }

llvm::StringRef cleave::cuda::float8Functions() {
  return R"(// The header's conversions give the largest value for what is too large, which
// is that of e4m3. In e5m2 it is infinity.
template <class T> __device__ __forceinline__ __nv_fp8_e5m2 toE5M2(T x) {
  __nv_fp8_e5m2 y(x);
  if (x >= T(61440) || x <= T(-61440))
    y.__x = (x < T(0) ? 0x80 : 0) | 0x7c;
  return y;
}

)";
}
