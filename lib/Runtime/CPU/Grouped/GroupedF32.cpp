//===- GroupedF32.cpp - Matmuls of few f32 rows ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// The library packs its operands, which for few rows takes longer than to
// multiply them. Here a weight is read once from memory and used for several
// rows at a time.
//
//===----------------------------------------------------------------------===//

#include "GroupedF32.h"

#include <algorithm>
#include <type_traits>

#ifdef __AVX512F__
#include <immintrin.h>

using namespace cleave::runtime;

namespace {

/// A mask of the first `n` of 16.
__mmask16 first(int64_t n) {
  return n >= 16 ? __mmask16(0xffff)
                 : __mmask16((1u << std::max<int64_t>(n, 0)) - 1);
}

/// Rows of B that are read ahead of their use.
constexpr int64_t kAhead = 12;

template <int Rows, int Wide> void clear(__m512 (&sums)[Rows][Wide]) {
  for (auto &row : sums)
    for (__m512 &sum : row)
      sum = _mm512_setzero_ps();
}

/// C [Rows, 16 Wide] of A [Rows, k] and B [k, columns], columns <= 16 Wide;
/// unless `begins`, it is added to C. `Full`: of 16 Wide columns.
template <int Rows, int Wide, bool Full>
void byRows(bool begins, int64_t columns, int64_t k, const float *a,
            int64_t lda, const float *b, int64_t ldb, float *c, int64_t ldc) {
  __m512 sums[Rows][Wide];
  clear(sums);
  for (int64_t i = 0; i < k; ++i, b += ldb) {
    __m512 weight[Wide];
    for (int j = 0; j < Wide; ++j) {
      if (i + kAhead < k)
        _mm_prefetch(reinterpret_cast<const char *>(b + kAhead * ldb + 16 * j),
                     _MM_HINT_T0);
      weight[j] =
          Full ? _mm512_loadu_ps(b + 16 * j)
               : _mm512_maskz_loadu_ps(first(columns - 16 * j), b + 16 * j);
    }
    for (int row = 0; row < Rows; ++row) {
      __m512 own = _mm512_set1_ps(a[row * lda + i]);
      for (int j = 0; j < Wide; ++j)
        sums[row][j] = _mm512_fmadd_ps(own, weight[j], sums[row][j]);
    }
  }
  for (int row = 0; row < Rows; ++row)
    for (int j = 0; j < Wide; ++j) {
      float *to = c + row * ldc + 16 * j;
      __mmask16 mask = first(columns - 16 * j);
      __m512 sum = sums[row][j];
      if (!begins)
        sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, to));
      _mm512_mask_storeu_ps(to, mask, sum);
    }
}

/// C [Rows, Columns] of A [Rows, k] and B [Columns, k].
template <int Rows, int Columns>
void byColumns(bool begins, int64_t k, const float *a, int64_t lda,
               const float *b, int64_t ldb, float *c, int64_t ldc) {
  __m512 sums[Rows][Columns];
  clear(sums);
  auto add = [&](int64_t i, __mmask16 mask) {
    __m512 own[Rows];
    for (int row = 0; row < Rows; ++row)
      own[row] = _mm512_maskz_loadu_ps(mask, a + row * lda + i);
    for (int j = 0; j < Columns; ++j) {
      __m512 weight = _mm512_maskz_loadu_ps(mask, b + j * ldb + i);
      for (int row = 0; row < Rows; ++row)
        sums[row][j] = _mm512_fmadd_ps(own[row], weight, sums[row][j]);
    }
  };
  int64_t i = 0;
  for (; i + 16 <= k; i += 16)
    add(i, __mmask16(0xffff));
  if (i < k)
    add(i, first(k - i));
  for (int row = 0; row < Rows; ++row)
    for (int j = 0; j < Columns; ++j) {
      float sum = _mm512_reduce_add_ps(sums[row][j]), &to = c[row * ldc + j];
      to = begins ? sum : to + sum;
    }
}

/// The same for any number of columns, up to 16 Wide of B that is not
/// transposed.
template <int Rows, int Wide>
void rowsOf(bool transposed, bool begins, int64_t columns, int64_t k,
            const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
            int64_t ldc) {
  if (!transposed)
    return columns == 16 * Wide
               ? byRows<Rows, Wide, true>(begins, columns, k, a, lda, b, ldb, c,
                                          ldc)
               : byRows<Rows, Wide, false>(begins, columns, k, a, lda, b, ldb,
                                           c, ldc);
  int64_t j = 0;
  for (; j + 4 <= columns; j += 4)
    byColumns<Rows, 4>(begins, k, a, lda, b + j * ldb, ldb, c + j, ldc);
  for (; j < columns; ++j)
    byColumns<Rows, 1>(begins, k, a, lda, b + j * ldb, ldb, c + j, ldc);
}

/// Columns of C at a time in a gradient of weights, and rows that are packed.
constexpr int kWide = 8, kPacked = 48;

/// C [Count, columns], columns <= 16 kWide, of packed rows of A and of B.
template <int Count>
void weightRows(int64_t rows, int64_t columns, const float (*a)[kPacked],
                const float (*b)[16 * kWide], float *c, int64_t ldc) {
  __m512 sums[Count][kWide];
  clear(sums);
  for (int64_t row = 0; row < rows; ++row) {
    __m512 own[Count];
    for (int i = 0; i < Count; ++i)
      own[i] = _mm512_set1_ps(a[row][i]);
    for (int j = 0; j < kWide; ++j) {
      __m512 other = _mm512_load_ps(b[row] + 16 * j);
      for (int i = 0; i < Count; ++i)
        sums[i][j] = _mm512_fmadd_ps(own[i], other, sums[i][j]);
    }
  }
  for (int i = 0; i < Count; ++i, c += ldc)
    // Past the caches: a gradient is read much later.
    if (columns == 16 * kWide && reinterpret_cast<uintptr_t>(c) % 64 == 0)
      for (int j = 0; j < kWide; ++j)
        _mm512_stream_ps(c + 16 * j, sums[i][j]);
    else
      for (int j = 0; j < kWide; ++j)
        _mm512_mask_storeu_ps(c + 16 * j, first(columns - 16 * j), sums[i][j]);
}

/// Copies [rows, width] to rows of `Width`.
template <int Width>
void pack(int64_t rows, int64_t width, const float *from, int64_t ld,
          float (*to)[Width]) {
  for (int64_t row = 0; row < rows; ++row)
    for (int j = 0; j < Width; j += 16)
      _mm512_store_ps(to[row] + j, _mm512_maskz_loadu_ps(first(width - j),
                                                         from + row * ld + j));
}

} // namespace

bool cleave::runtime::hasFewRowsF32() {
  static const bool has =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return has;
}

void cleave::runtime::fewRowsF32(int64_t rows, int64_t columns, int64_t k,
                                 const float *a, int64_t lda, const float *b,
                                 int64_t ldb, bool transposed, float *c,
                                 int64_t ldc) {
  constexpr int wide = 4;
  for (int64_t column = 0; column < columns; column += 16 * wide)
    for (int64_t i = 0; i < k; i += kFewRowsF32Depth) {
      int64_t width = std::min<int64_t>(16 * wide, columns - column),
              depth = std::min(kFewRowsF32Depth, k - i), row = 0;
      const float *weight =
          b + (transposed ? column * ldb + i : i * ldb + column);
      auto next = [&](auto count) {
        constexpr int n = decltype(count)::value;
        for (; row + n <= rows; row += n)
          rowsOf<n, wide>(transposed, i == 0, width, depth, a + row * lda + i,
                          lda, weight, ldb, c + row * ldc + column, ldc);
      };
      if (!transposed)
        next(std::integral_constant<int, 6>());
      next(std::integral_constant<int, 4>());
      next(std::integral_constant<int, 2>());
      next(std::integral_constant<int, 1>());
    }
}

void cleave::runtime::fewRowsWeightF32(int64_t rows, int64_t k, int64_t columns,
                                       const float *a, int64_t lda,
                                       const float *b, int64_t ldb, float *c,
                                       int64_t ldc) {
  // Rows whose distance is a power of 2 would share few lines of a cache.
  alignas(64) float own[kFewRowsWeightF32][kPacked];
  alignas(64) float other[kFewRowsWeightF32][16 * kWide];
  for (int64_t column = 0; column < columns; column += 16 * kWide) {
    int64_t width = std::min<int64_t>(16 * kWide, columns - column);
    pack(rows, width, b + column, ldb, other);
    for (int64_t i = 0; i < k; i += kPacked) {
      int64_t depth = std::min<int64_t>(kPacked, k - i), done = 0;
      pack(rows, depth, a + i, lda, own);
      auto next = [&](auto count) {
        constexpr int n = decltype(count)::value;
        for (; done + n <= depth; done += n)
          weightRows<n>(
              rows, width,
              reinterpret_cast<const float (*)[kPacked]>(own[0] + done), other,
              c + (i + done) * ldc + column, ldc);
      };
      next(std::integral_constant<int, 3>());
      next(std::integral_constant<int, 1>());
    }
  }
  _mm_sfence();
}

#else

bool cleave::runtime::hasFewRowsF32() { return false; }
void cleave::runtime::fewRowsF32(int64_t, int64_t, int64_t, const float *,
                                 int64_t, const float *, int64_t, bool, float *,
                                 int64_t) {}
void cleave::runtime::fewRowsWeightF32(int64_t, int64_t, int64_t, const float *,
                                       int64_t, const float *, int64_t, float *,
                                       int64_t) {}

#endif
