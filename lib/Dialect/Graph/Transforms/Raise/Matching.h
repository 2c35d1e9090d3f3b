//===- Matching.h - What patterns ask of operands ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_RAISE_MATCHING_H
#define CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_RAISE_MATCHING_H

#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include <optional>

namespace cleave::graph {

/// Both orders of the operands of `value` if it is a commutative op of this
/// kind.
template <typename OpT>
llvm::SmallVector<std::pair<mlir::Value, mlir::Value>, 2>
bothOrders(mlir::Value value) {
  auto op = value.getDefiningOp<OpT>();
  if (!op)
    return {};
  mlir::Value a = op->getOperand(0), b = op->getOperand(1);
  if (a == b)
    return {{a, b}};
  return {{a, b}, {b, a}};
}

/// The number that all elements of a constant equal, also after broadcasts,
/// reshapes and casts between floats: of a float constant the shortest decimal
/// that rounds to it, which is what a person wrote.
std::optional<double> numberOf(mlir::Value value);

/// The same of a constant of one element.
std::optional<double> scalarOf(mlir::Value value);

/// `shape` without dimensions of size 1.
llvm::SmallVector<int64_t> withoutUnits(llvm::ArrayRef<int64_t> shape);

/// `value` without broadcasts, and without reshapes that only insert or remove
/// dimensions of size 1.
mlir::Value withoutUnits(mlir::Value value);

/// Erases those of `ops` that nothing reads, and what they alone read.
void eraseUnread(llvm::ArrayRef<mlir::Operation *> ops);

} // namespace cleave::graph

#endif // CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_RAISE_MATCHING_H
