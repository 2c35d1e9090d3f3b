//===- OrthonormalScratch.h - Memory of an orthonormalisation ---*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// How Householder reflections of a matrix [rows x columns] are computed on any
/// device. Rows are divided into `blocks` of `blockRows` rows, a multiple of
/// 256; those behind the last row are zero. Passes go over all blocks; each
/// block adds up its own sums, and every reader adds those of the blocks up in
/// their order, so that results do not depend on threads.
///
/// The matrix is f64. Before pass j, columns before j hold the vectors v of the
/// reflections `I - tau v v^T`, with zeros above the diagonal and 1 on it (or
/// all zeros, where the reflection is the identity); from column j on they hold
/// what is left of the matrix below row j - 1, with zeros above. `sums` has, of
/// each block, the dot products of column j with all columns: they give the
/// norm of column j, what the reflection makes of the later columns, and the
/// dot products of v with the earlier ones. `pivots` has row j as it is before
/// pass j. With the triangle T of these (LAPACK's `larft`), the product of all
/// reflections is `I - V T V^T`.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SUPPORT_ORTHONORMALSCRATCH_H
#define CLEAVE_SUPPORT_ORTHONORMALSCRATCH_H

#include <algorithm>
#include <cstdint>

namespace cleave {

/// Scratch memory of one matrix; offsets count elements of f64.
struct OrthonormalScratch {
  static constexpr int64_t kTile = 256, kBlocks = 256;
  /// A column is dependent on those before it if at most this share of its norm
  /// is left; of f32.
  static constexpr double kTolerance = 0x1p-17;

  OrthonormalScratch(int64_t rows, int64_t columns) {
    int64_t tiles = std::max<int64_t>(1, (rows + kTile - 1) / kTile);
    blockRows = (tiles + kBlocks - 1) / kBlocks * kTile;
    blocks = (tiles * kTile + blockRows - 1) / blockRows;
    auto place = [&](int64_t count) {
      int64_t at = size;
      size += (count + 7) / 8 * 8;
      return at;
    };
    matrix = place(blocks * columns * blockRows);
    norms = place(blocks * columns);
    for (int64_t &each : sums)
      each = place(blocks * columns);
    pivots = place(columns * columns);
    gram = place(columns * columns);
    triangle = place(columns * columns);
    product = place(columns * columns);
    factors = place(columns);
    signs = place(columns);
  }

  /// Of `batch` matrices, one after the other.
  int64_t bytes(int64_t batch) const {
    return batch * size * static_cast<int64_t>(sizeof(double));
  }

  int64_t blockRows, blocks;
  /// [block, column, row of the block].
  int64_t matrix;
  /// [block, column]: squares of the matrix; products with column j, of even
  /// and of odd j.
  int64_t norms, sums[2];
  /// [j, column]: row j before pass j. Its column k < j is v of reflection k.
  int64_t pivots;
  /// [k, j], k < j: the product of v of the reflections k and j.
  int64_t gram;
  /// [k, j], k <= j: T, and T V^T of the first rows.
  int64_t triangle, product;
  /// tau of each reflection, and the sign of each column of the result; NaN if
  /// the matrix is not finite.
  int64_t factors, signs;
  int64_t size = 0;
};

} // namespace cleave

#endif // CLEAVE_SUPPORT_ORTHONORMALSCRATCH_H
