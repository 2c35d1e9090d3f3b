//===- GroupedF32.h - Matmuls of few f32 rows -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_CPU_GROUPED_GROUPEDF32_H
#define CLEAVE_LIB_RUNTIME_CPU_GROUPED_GROUPEDF32_H

#include <cstdint>

namespace cleave::runtime {

/// The most rows for which `fewRowsF32` is faster than the library.
inline constexpr int64_t kFewRowsF32 = 32;

/// The most rows for which `fewRowsWeightF32` is faster than the library.
inline constexpr int64_t kFewRowsWeightF32 = 48;

/// Longer sums are of pieces, as those of the library are.
inline constexpr int64_t kFewRowsF32Depth = 512;

/// Whether this processor has vectors of 16 f32.
bool hasFewRowsF32();

/// C [rows, columns] of A [rows, k] and B [k, columns] or, `transposed`,
/// [columns, k].
void fewRowsF32(int64_t rows, int64_t columns, int64_t k, const float *a,
                int64_t lda, const float *b, int64_t ldb, bool transposed,
                float *c, int64_t ldc);

/// C [k, columns] of A [rows, k], which is transposed, and B [rows, columns];
/// of at most `kFewRowsWeightF32` rows.
void fewRowsWeightF32(int64_t rows, int64_t k, int64_t columns, const float *a,
                      int64_t lda, const float *b, int64_t ldb, float *c,
                      int64_t ldc);

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_CPU_GROUPED_GROUPEDF32_H
