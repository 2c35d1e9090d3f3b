//===- GroupedBF16.h - Products of few bf16 rows ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_CPU_GROUPED_GROUPEDBF16_H
#define CLEAVE_LIB_RUNTIME_CPU_GROUPED_GROUPEDBF16_H

#include <cstdint>

namespace cleave::runtime {

/// The most rows for which these functions are faster than the library.
inline constexpr int64_t kFewRows = 48;

/// Longer sums are of pieces, as those of the library are.
inline constexpr int64_t kFewRowsDepth = 512;

/// Whether this processor multiplies pairs of bf16.
bool hasFewRowsBF16();

/// C [rows, columns] of A [rows, k] and B [k, columns] or, `transposed`,
/// [columns, k].
void fewRowsBF16(int64_t rows, int64_t columns, int64_t k, const uint16_t *a,
                 int64_t lda, const uint16_t *b, int64_t ldb, bool transposed,
                 float *c, int64_t ldc);

/// C [k, columns] of A [rows, k], which is transposed, and B [rows, columns];
/// of at most `kFewRows` rows.
void fewRowsWeightBF16(int64_t rows, int64_t k, int64_t columns,
                       const uint16_t *a, int64_t lda, const uint16_t *b,
                       int64_t ldb, float *c, int64_t ldc);

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_CPU_GROUPED_GROUPEDBF16_H
