//===- EvenRows.h - Rows of buffers with room for more ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A buffer of rows that other ranks send has room for more than an even share.
/// A cost counts the even share.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_ATTRIBUTES_EVENROWS_H
#define CLEAVE_DIALECT_GRAPH_IR_ATTRIBUTES_EVENROWS_H

#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Operation.h"
#include <optional>

namespace cleave::graph {

/// The attribute of an op on rows: as many of its rows are expected to be used.
inline constexpr llvm::StringLiteral kEvenRowsAttr = "graph.even_rows";

inline void setEvenRows(mlir::Operation *op, int64_t rows) {
  op->setAttr(kEvenRowsAttr,
              mlir::IntegerAttr::get(
                  mlir::IntegerType::get(op->getContext(), 64), rows));
}

/// The rows that are expected to be used, of `all`.
inline int64_t evenRows(mlir::Operation *op, int64_t all) {
  auto rows = op->getAttrOfType<mlir::IntegerAttr>(kEvenRowsAttr);
  return rows ? std::min<int64_t>(rows.getInt(), all) : all;
}

/// The elements of an even share of rows that are sent: one of `input` and
/// `output` may have room for more.
inline int64_t evenElements(mlir::Operation *op, mlir::Value input,
                            mlir::Value output) {
  auto from = llvm::cast<mlir::RankedTensorType>(input.getType()),
       to = llvm::cast<mlir::RankedTensorType>(output.getType());
  auto less = from.getDimSize(0) < to.getDimSize(0) ? from : to;
  int64_t rows = less.getDimSize(0);
  return rows ? less.getNumElements() / rows * evenRows(op, rows) : 0;
}

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_IR_ATTRIBUTES_EVENROWS_H
