//===- RowOps.h - Ops that compute each row alone ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Rows are the slices of a tensor along its first dimensions. By their
/// sharding rules, ops compute each row of their results from the same rows of
/// their operands, or reduce all rows.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_ROWS_ROWOPS_H
#define CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_ROWS_ROWOPS_H

#include "cleave/Dialect/Graph/IR/GraphOps.h"

namespace cleave::graph {

/// The number of first dimensions of `shape` that hold `rows` elements, if
/// there is one.
std::optional<int64_t> rowRank(llvm::ArrayRef<int64_t> shape, int64_t rows);

/// The part of an operand that an op reads to compute a row.
enum class RowUse {
  Rows,     ///< the same row
  Repeated, ///< a row that several rows repeat, by the rules of NumPy
  Other     ///< what does not depend on the row
};

struct RowOp {
  /// The dimensions that are rows, the same in all tensors that have them.
  int64_t rank = 0;
  /// A reshape may have others in its result.
  bool reshapes = false;
  llvm::SmallVector<RowUse, 4> operands;

  /// How `op` computes each of `rows` rows of its results, if it does, and if
  /// that is cheap: nothing that is a product, random, or depends on which row
  /// it is.
  static std::optional<RowOp> of(mlir::Operation *op, int64_t rows);
  /// How `op` reduces all rows of its operand `index`, if it does.
  static std::optional<RowOp> reducing(mlir::Operation *op, unsigned index,
                                       int64_t rows);
};

/// `shape` with `rows` rows in the last of its first `rank` dimensions, which
/// are those of rows.
llvm::SmallVector<int64_t> shapeOnRows(llvm::ArrayRef<int64_t> shape,
                                       int64_t rank, int64_t rows);

/// The first op of its block that reads `value`, itself or inside, of those for
/// which `isLeftOut` is false; or null.
mlir::Operation *
firstUser(mlir::Value value,
          llvm::function_ref<bool(mlir::Operation *)> isLeftOut);

/// Builds `op` on operands and results that have all rows in the last of their
/// first dimensions.
mlir::Operation *buildOnRows(mlir::Operation *op, mlir::OpBuilder &builder,
                             mlir::ValueRange operands, mlir::TypeRange types);

} // namespace cleave::graph

#endif // CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_ROWS_ROWOPS_H
