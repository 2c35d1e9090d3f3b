//===- GroupedBF16.cpp - Products of few bf16 rows ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// The library packs its operands, which for few rows takes longer than to
// multiply them. Here a weight is read once from memory and used for several
// rows at a time, by instructions that multiply pairs of bf16 and add to f32.
//
//===----------------------------------------------------------------------===//

#include "GroupedBF16.h"

#include <algorithm>
#include <tuple>
#include <type_traits>

#ifdef __AVX512BF16__
#include <immintrin.h>

using namespace cleave::runtime;

namespace {

using Pairs = __m512bh;

Pairs pairs(__m512i bits) { return reinterpret_cast<Pairs>(bits); }

/// A mask of the first `n` of `all`.
uint32_t first(int64_t n, int all) {
  return n >= all ? uint32_t((uint64_t(1) << all) - 1)
                  : (uint32_t(1) << std::max<int64_t>(n, 0)) - 1;
}

__m512i load32(const uint16_t *from, int64_t n) {
  return _mm512_maskz_loadu_epi16(first(n, 32), from);
}

/// Of two rows of 32 elements, pairs of the first 16 columns, and of the last.
struct Interleave {
  __m512i low, high;

  Interleave() {
    alignas(64) uint16_t a[32], b[32];
    for (int i = 0; i < 16; ++i) {
      a[2 * i] = uint16_t(i);
      a[2 * i + 1] = uint16_t(32 + i);
      b[2 * i] = uint16_t(16 + i);
      b[2 * i + 1] = uint16_t(48 + i);
    }
    low = _mm512_load_si512(a);
    high = _mm512_load_si512(b);
  }
};

/// Pairs of 32 columns of a row and the next one, if there is one.
std::pair<__m512i, __m512i> interleaved(const Interleave &order,
                                        const uint16_t *row, int64_t ld,
                                        int64_t columns, bool both) {
  __m512i x = load32(row, columns),
          y = both ? load32(row + ld, columns) : _mm512_setzero_si512();
  return {_mm512_permutex2var_epi16(x, order.low, y),
          _mm512_permutex2var_epi16(x, order.high, y)};
}

/// Two neighbours in all lanes.
Pairs repeat(const uint16_t *from) {
  uint32_t bits;
  __builtin_memcpy(&bits, from, 4);
  return pairs(_mm512_set1_epi32(int(bits)));
}

/// Adds A [Rows, 2] B [2, columns] to sums; the second element, and row, may be
/// missing. `Full`: of 64 columns.
template <int Rows, bool Full>
void addPair(__m512 (&sums)[Rows][4], const Interleave &order, int64_t columns,
             bool both, const uint16_t *a, int64_t lda, const uint16_t *b,
             int64_t ldb) {
  Pairs weight[4];
  for (int half = 0; half < 2; ++half) {
    auto load = [&](const uint16_t *row) {
      return Full ? _mm512_loadu_si512(row + 32 * half)
                  : load32(row + 32 * half, columns - 32 * half);
    };
    __m512i x = load(b), y = both ? load(b + ldb) : _mm512_setzero_si512();
    weight[2 * half] = pairs(_mm512_permutex2var_epi16(x, order.low, y));
    weight[2 * half + 1] = pairs(_mm512_permutex2var_epi16(x, order.high, y));
  }
  for (int row = 0; row < Rows; ++row) {
    Pairs own = both ? repeat(a + row * lda)
                     : pairs(_mm512_set1_epi32(int(a[row * lda])));
    for (int j = 0; j < 4; ++j)
      sums[row][j] = _mm512_dpbf16_ps(sums[row][j], own, weight[j]);
  }
}

/// C [Rows, 64] of A [Rows, k] and B [k, columns], columns <= 64; unless
/// `begins`, it is added to C.
template <int Rows, bool Full>
void byRows(bool begins, int64_t columns, int64_t k, const uint16_t *a,
            int64_t lda, const uint16_t *b, int64_t ldb, float *c,
            int64_t ldc) {
  const Interleave order;
  __m512 sums[Rows][4];
  for (auto &row : sums)
    for (__m512 &sum : row)
      sum = _mm512_setzero_ps();
  int64_t i = 0;
  for (; i + 1 < k; i += 2)
    addPair<Rows, Full>(sums, order, columns, /*both=*/true, a + i, lda,
                        b + i * ldb, ldb);
  if (i < k)
    addPair<Rows, Full>(sums, order, columns, /*both=*/false, a + i, lda,
                        b + i * ldb, ldb);
  for (int row = 0; row < Rows; ++row)
    for (int j = 0; j < 4; ++j) {
      float *to = c + row * ldc + 16 * j;
      auto mask = __mmask16(first(columns - 16 * j, 16));
      __m512 sum = sums[row][j];
      if (!begins)
        sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, to));
      _mm512_mask_storeu_ps(to, mask, sum);
    }
}

/// C [Rows, Columns] of A [Rows, k] and B [Columns, k].
template <int Rows, int Columns>
void byColumns(bool begins, int64_t k, const uint16_t *a, int64_t lda,
               const uint16_t *b, int64_t ldb, float *c, int64_t ldc) {
  __m512 sums[Rows][Columns];
  for (auto &row : sums)
    for (__m512 &sum : row)
      sum = _mm512_setzero_ps();
  auto add = [&](int64_t i, auto load) {
    Pairs own[Rows];
    for (int row = 0; row < Rows; ++row)
      own[row] = pairs(load(a + row * lda + i));
    for (int j = 0; j < Columns; ++j) {
      Pairs weight = pairs(load(b + j * ldb + i));
      for (int row = 0; row < Rows; ++row)
        sums[row][j] = _mm512_dpbf16_ps(sums[row][j], own[row], weight);
    }
  };
  int64_t i = 0;
  for (; i + 32 <= k; i += 32)
    add(i, [](const uint16_t *from) { return _mm512_loadu_si512(from); });
  if (i < k)
    add(i, [&](const uint16_t *from) { return load32(from, k - i); });
  for (int row = 0; row < Rows; ++row)
    for (int j = 0; j < Columns; ++j) {
      float sum = _mm512_reduce_add_ps(sums[row][j]), &to = c[row * ldc + j];
      to = begins ? sum : to + sum;
    }
}

template <int Rows>
void rowsOf(bool transposed, bool begins, int64_t columns, int64_t k,
            const uint16_t *a, int64_t lda, const uint16_t *b, int64_t ldb,
            float *c, int64_t ldc) {
  if (!transposed)
    return columns == 64
               ? byRows<Rows, true>(begins, columns, k, a, lda, b, ldb, c, ldc)
               : byRows<Rows, false>(begins, columns, k, a, lda, b, ldb, c,
                                     ldc);
  int64_t j = 0;
  for (; j + 4 <= columns; j += 4)
    byColumns<Rows, 4>(begins, k, a, lda, b + j * ldb, ldb, c + j, ldc);
  for (; j < columns; ++j)
    byColumns<Rows, 1>(begins, k, a, lda, b + j * ldb, ldb, c + j, ldc);
}

} // namespace

bool cleave::runtime::hasFewRowsBF16() {
  static const bool has = __builtin_cpu_supports("avx512bf16") &&
                          __builtin_cpu_supports("avx512bw");
  return has;
}

void cleave::runtime::fewRowsBF16(int64_t rows, int64_t columns, int64_t k,
                                  const uint16_t *a, int64_t lda,
                                  const uint16_t *b, int64_t ldb,
                                  bool transposed, float *c, int64_t ldc) {
  for (int64_t column = 0; column < columns; column += 64)
    for (int64_t i = 0; i < k; i += kFewRowsDepth) {
      int64_t width = std::min<int64_t>(64, columns - column),
              depth = std::min(kFewRowsDepth, k - i), row = 0;
      const uint16_t *weight =
          b + (transposed ? column * ldb + i : i * ldb + column);
      auto next = [&](auto count) {
        constexpr int n = decltype(count)::value;
        for (; row + n <= rows; row += n)
          rowsOf<n>(transposed, i == 0, width, depth, a + row * lda + i, lda,
                    weight, ldb, c + row * ldc + column, ldc);
      };
      if (!transposed)
        next(std::integral_constant<int, 6>());
      next(std::integral_constant<int, 4>());
      next(std::integral_constant<int, 2>());
      next(std::integral_constant<int, 1>());
    }
}

void cleave::runtime::fewRowsWeightBF16(int64_t rows, int64_t k,
                                        int64_t columns, const uint16_t *a,
                                        int64_t lda, const uint16_t *b,
                                        int64_t ldb, float *c, int64_t ldc) {
  constexpr int wide = 8;
  const Interleave order;
  const int64_t pairCount = (rows + 1) / 2;
  // Pairs of rows of B, for as many columns as there are sums in registers.
  __m512i other[kFewRows / 2][wide];
  // And of A, for 32 rows of C.
  alignas(64) uint16_t own[kFewRows / 2][64];
  for (int64_t column = 0; column < columns; column += 16 * wide) {
    int64_t width = std::min<int64_t>(16 * wide, columns - column);
    for (int64_t p = 0; p < pairCount; ++p)
      for (int j = 0; j < wide; j += 2)
        std::tie(other[p][j], other[p][j + 1]) =
            interleaved(order, b + 2 * p * ldb + column + 16 * j, ldb,
                        width - 16 * j, /*both=*/2 * p + 1 < rows);
    for (int64_t i = 0; i < k; ++i) {
      if (i % 32 == 0)
        for (int64_t p = 0; p < pairCount; ++p) {
          auto [low, high] = interleaved(order, a + 2 * p * lda + i, lda, k - i,
                                         /*both=*/2 * p + 1 < rows);
          _mm512_store_si512(own[p], low);
          _mm512_store_si512(own[p] + 32, high);
        }
      __m512 sums[wide];
      for (__m512 &sum : sums)
        sum = _mm512_setzero_ps();
      for (int64_t p = 0; p < pairCount; ++p) {
        Pairs left = repeat(own[p] + 2 * (i % 32));
        for (int j = 0; j < wide; ++j)
          sums[j] = _mm512_dpbf16_ps(sums[j], left, pairs(other[p][j]));
      }
      float *to = c + i * ldc + column;
      // Past the caches: a gradient is read by what comes much later.
      if (width == 16 * wide && reinterpret_cast<uintptr_t>(to) % 64 == 0)
        for (int j = 0; j < wide; ++j)
          _mm512_stream_ps(to + 16 * j, sums[j]);
      else
        for (int j = 0; j < wide; ++j)
          _mm512_mask_storeu_ps(to + 16 * j,
                                __mmask16(first(width - 16 * j, 16)), sums[j]);
    }
  }
  _mm_sfence();
}

#else

bool cleave::runtime::hasFewRowsBF16() { return false; }
void cleave::runtime::fewRowsBF16(int64_t, int64_t, int64_t, const uint16_t *,
                                  int64_t, const uint16_t *, int64_t, bool,
                                  float *, int64_t) {}
void cleave::runtime::fewRowsWeightBF16(int64_t, int64_t, int64_t,
                                        const uint16_t *, int64_t,
                                        const uint16_t *, int64_t, float *,
                                        int64_t) {}

#endif
