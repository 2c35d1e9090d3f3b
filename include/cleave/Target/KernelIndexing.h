//===- KernelIndexing.h - Memory access of affine maps ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TARGET_KERNELINDEXING_H
#define CLEAVE_TARGET_KERNELINDEXING_H

#include "mlir/IR/AffineExpr.h"
#include <optional>

namespace cleave {

/// An expression over `lanes` consecutive points: its value at lane j is `base
/// + j * stride`, and `base` is a multiple of `multiple` (0: the base is zero).
struct LaneStep {
  int64_t stride = 0;
  int64_t multiple = 1;
};

/// How the lanes of one vector differ in row, column and symbols.
struct LaneGeometry {
  unsigned lanes = 1;
  LaneStep row, col;
  /// Symbols (gather indices) that are not the same in all lanes.
  llvm::ArrayRef<bool> varyingSymbols;
};

/// The stride of `expr`, or nothing if the lanes have no common stride.
std::optional<LaneStep> stepOf(mlir::AffineExpr expr,
                               const LaneGeometry &geometry);

/// Rewrites `expr`, a function of row and column, as one of the flat index `row
/// * cols + col`, which becomes dimension 0.
mlir::AffineExpr flatten(mlir::AffineExpr expr, int64_t cols);

/// The minimum and maximum of `expr` when each dimension runs from 0 to its
/// extent; nothing if it has symbols.
std::optional<std::pair<int64_t, int64_t>>
rangeOf(mlir::AffineExpr expr, llvm::ArrayRef<int64_t> extents);

} // namespace cleave

#endif // CLEAVE_TARGET_KERNELINDEXING_H
