//===- ScaledOperand.h - Tensors times numbers ------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_SHARDINGRULES_SCALEDOPERAND_H
#define CLEAVE_DIALECT_GRAPH_IR_SHARDINGRULES_SCALEDOPERAND_H

#include "cleave/Dialect/Graph/IR/GraphOps.h"

namespace cleave::graph {

/// The tensor that a pointwise op of several operands combines with scalars
/// alone, as a product with a scale does; otherwise null.
inline mlir::Value scaledOperand(mlir::Operation *op) {
  if (!op->hasTrait<mlir::OpTrait::PointwiseOp>() || op->getNumOperands() < 2)
    return {};
  mlir::Value found;
  for (mlir::Value operand : op->getOperands()) {
    if (llvm::cast<mlir::RankedTensorType>(operand.getType()).getRank() == 0)
      continue;
    if (found)
      return {};
    found = operand;
  }
  return found;
}

/// The argument that each element of `value` is computed from, with scalars,
/// and with numbers that are repeated along dimensions, as a rounded weight and
/// its scales are: the element at the same place; otherwise null. `value` is
/// the result of a pointwise op.
mlir::BlockArgument pointwiseArgument(mlir::Value value);

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_IR_SHARDINGRULES_SCALEDOPERAND_H
