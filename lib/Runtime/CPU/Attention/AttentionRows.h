//===- AttentionRows.h - Row functions of attention -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The functions that attention applies to one row of scores between its
/// contractions. Compiled once per instruction set; `get` chooses at run time.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_CPU_ATTENTION_ATTENTIONROWS_H
#define CLEAVE_LIB_RUNTIME_CPU_ATTENTION_ATTENTIONROWS_H

#include "cleave/Support/Philox.h"

namespace cleave::runtime {

/// Elements of a row are padded to a multiple of this.
inline constexpr int64_t kRowLanes = 16;

struct AttentionRow {
  /// Scores, scaled; `width` of them, a multiple of 64.
  float *scores = nullptr;
  int64_t width = 0;
  /// The range of keys, within the row, that causality and window let the query
  /// see.
  int64_t begin = 0, end = 0;
  const float *bias = nullptr;
  int64_t biasStride = 0;
  const uint8_t *mask = nullptr;
  int64_t maskStride = 0;
  const int64_t *keySegments = nullptr;
  int64_t querySegment = 0;
  /// Dropout: null stream for none. `element` is the global index of the
  /// row's first score; drawing is fast where that is a multiple of 64.
  const philox::Stream *stream = nullptr;
  uint32_t threshold = 0;
  float keepScale = 1.0f;
  uint64_t element = 0;
  /// With keys in `pieces` of `pieceKeys`: the offset at which each begins,
  /// relative to `element`; the row's first score is that of `firstKey`.
  const int64_t *keyStarts = nullptr;
  int64_t pieces = 0, pieceKeys = 1, firstKey = 0;

  /// The piece of score `j`; the padding of the row belongs to the last one.
  int64_t pieceOf(int64_t j) const {
    int64_t piece = (firstKey + j) / pieceKeys;
    return piece < pieces ? piece : pieces - 1;
  }
  /// The global index of score `j`.
  uint64_t elementOf(int64_t j) const {
    if (!keyStarts)
      return element + static_cast<uint64_t>(j);
    int64_t piece = pieceOf(j);
    return element + static_cast<uint64_t>(keyStarts[piece] + firstKey + j -
                                           piece * pieceKeys);
  }
  /// Whether the indices of the 64 scores from `j` on are consecutive.
  bool isStraight(int64_t j) const {
    return !keyStarts || pieceOf(j) == pieceOf(j + 63);
  }
};

struct AttentionRowFunctions {
  /// Replaces scores by unnormalised probabilities (dropped ones 0). Returns
  /// the factor for the row of the product; sets the largest score, and the
  /// log-sum-exp of the scores less that.
  float (*forward)(const AttentionRow &row, float &largest, float &rest);
  /// Replaces scores by probabilities with dropout, and `gradients` (of those)
  /// by the gradients of the scores; the logarithm of the sum is `lse + rest`,
  /// in two numbers for accuracy; `dot` is the row's sum of dO * O. That of P
  /// times its gradient is the same, and is taken where all of P is in the row:
  /// O may have been rounded. Gradients of the bias, if wanted, are added to
  /// `dBias`.
  void (*backward)(const AttentionRow &row, float *gradients, float lse,
                   float rest, float dot, float *dBias, int64_t dBiasStride);
  /// Σ a[i] * b[i].
  float (*dot)(const float *a, const float *b, int64_t n);
  /// a[i] *= factor.
  void (*scale)(float *a, float factor, int64_t n);
  /// exp, exposed to test its error.
  void (*exp)(float *a, int64_t n);
};

/// The best functions for this machine, or those of "avx512", "avx2" or
/// "baseline"; null if the machine lacks the instructions.
const AttentionRowFunctions *getAttentionRows(const char *isa = nullptr);

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_CPU_ATTENTION_ATTENTIONROWS_H
