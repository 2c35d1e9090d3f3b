//===- RowExchange.h - Rows to the positions of their groups ----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The offsets by which rows that are sorted by group go to the positions that
/// hold their groups: all positions gather how many rows each
/// has of each group, and the rest follows.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_TRANSFORMS_ROWEXCHANGE_H
#define CLEAVE_DIALECT_SPMD_TRANSFORMS_ROWEXCHANGE_H

#include "cleave/Dialect/Spmd/IR/Axes.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/Value.h"

#include <optional>
#include <string>

namespace mlir {
class OpBuilder;
} // namespace mlir

namespace cleave::spmd {

/// Of P positions and E groups, of which position p holds E/P, from p E/P on.
/// All are 64-bit integers.
struct RowExchange {
  /// `[P+1]`, of `spmd.all_to_all_rows`; swapped for the way back.
  mlir::Value sendOffsets, receiveOffsets;
  /// `[P, E/P + 1]`: rows `ranges[p, e]` to `ranges[p, e + 1]` of what is
  /// received are of the e-th own group and came from position p.
  mlir::Value ranges;
};

/// The rows that a position has room for, where that is not all of them.
struct RowBound {
  int64_t rows = 0;
  /// The rows that it receives where groups are chosen evenly.
  int64_t even = 0;
  /// How an error calls the groups, and the option that gives the bound, with
  /// its value in even shares.
  std::string name, option, shares;
};

/// Builds the ops on the shards of a position along `axes`. Rows
/// `offsets[0, e]` to `offsets[0, e + 1]` of this position are of group e;
/// `offsets` is `[1, E+1]`. Where any position would receive more rows than
/// `bound`, no position of all along `axes` sends any, and a check ends the
/// step with an error of those that would.
RowExchange buildRowExchange(mlir::OpBuilder &builder, mlir::Location loc,
                             mlir::Value offsets,
                             mlir::FlatSymbolRefAttr meshName, const Mesh &mesh,
                             llvm::ArrayRef<AxisRef> axes,
                             const std::optional<RowBound> &bound);

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_TRANSFORMS_ROWEXCHANGE_H
