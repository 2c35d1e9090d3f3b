//===- Multiply.cpp - The inner loop of contractions ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// In a file of its own, so that it is compiled with full optimisation: tests
/// run whole models through it.
///
//===----------------------------------------------------------------------===//

#include "Models.h"

/// Columns of `b` in one block, so that it stays in the cache.
static constexpr int64_t kColumns = 256;

template <typename Accumulator>
void cleave::multiply(const double *a, const double *b, Accumulator *c,
                      int64_t m, int64_t n, int64_t k) {
  for (int64_t first = 0; first < n; first += kColumns) {
    int64_t columns = std::min(kColumns, n - first);
    int64_t row = 0;
    // Four rows share each row of b that is read.
    for (; row + 4 <= m; row += 4) {
      const double *a0 = a + row * k;
      Accumulator *c0 = c + row * n + first, *c1 = c0 + n, *c2 = c1 + n,
                  *c3 = c2 + n;
      for (int64_t i = 0; i < k; ++i) {
        double x0 = a0[i], x1 = a0[k + i], x2 = a0[2 * k + i],
               x3 = a0[3 * k + i];
        const double *bi = b + i * n + first;
        for (int64_t j = 0; j < columns; ++j) {
          c0[j] += x0 * bi[j];
          c1[j] += x1 * bi[j];
          c2[j] += x2 * bi[j];
          c3[j] += x3 * bi[j];
        }
      }
    }
    for (; row < m; ++row)
      for (int64_t i = 0; i < k; ++i) {
        double x = a[row * k + i];
        const double *bi = b + i * n + first;
        Accumulator *ci = c + row * n + first;
        for (int64_t j = 0; j < columns; ++j)
          ci[j] += x * bi[j];
      }
  }
}

template void cleave::multiply<double>(const double *, const double *, double *,
                                       int64_t, int64_t, int64_t);
template void cleave::multiply<float>(const double *, const double *, float *,
                                      int64_t, int64_t, int64_t);
