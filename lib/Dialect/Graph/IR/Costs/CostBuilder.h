//===- CostBuilder.h - Building costs ---------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_GRAPH_IR_COSTS_COSTBUILDER_H
#define CLEAVE_LIB_DIALECT_GRAPH_IR_COSTS_COSTBUILDER_H

#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/TensorBytes.h"

namespace cleave::graph {

inline int64_t elementsOf(mlir::Value value) {
  return llvm::cast<mlir::RankedTensorType>(value.getType()).getNumElements();
}

/// The values that the gradient of an op reads: flat indices of operands and
/// results.
struct Saved {
  llvm::SmallVector<unsigned, 4> operands = {}, results = {};
};

/// The cost of an op that reads each operand and writes each result once.
inline OpCost streamingCost(mlir::Operation *op, WorkClass work, int64_t flops,
                            Saved saved = {}) {
  OpCost cost;
  cost.work = work;
  cost.flops = flops;
  for (mlir::Value operand : op->getOperands())
    cost.bytesRead += bytesOf(operand);
  for (mlir::Value result : op->getResults())
    cost.bytesWritten += bytesOf(result);
  cost.savedOperands = saved.operands;
  cost.savedResults = saved.results;
  return cost;
}

/// The cost of an op that multiplies `lhs` and `rhs`.
inline OpCost contractionCost(mlir::Operation *op, mlir::Value lhs,
                              mlir::Value rhs, int64_t flops,
                              Saved saved = {}) {
  OpCost cost = streamingCost(op, WorkClass::Contraction, flops, saved);
  auto bits = [](mlir::Value value) {
    return mlir::getElementTypeOrSelf(value).getIntOrFloatBitWidth();
  };
  cost.factorBits = std::max(bits(lhs), bits(rhs));
  return cost;
}

} // namespace cleave::graph

#endif // CLEAVE_LIB_DIALECT_GRAPH_IR_COSTS_COSTBUILDER_H
