//===- ValueViews.h - Ops that only look at a value -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_RECOMPUTE_VALUEVIEWS_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_RECOMPUTE_VALUEVIEWS_H

#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/TensorBytes.h"

namespace cleave::pipe {

/// Whether `op` computes nothing: its result is a view of its operand.
inline bool isView(mlir::Operation *op) {
  auto costed = llvm::dyn_cast_or_null<graph::CostOpInterface>(op);
  return costed && costed.getCost().work == graph::WorkClass::View;
}

/// Whether `value` is a view of a part of another one.
inline bool isPart(mlir::Value value) {
  mlir::Operation *op = value.getDefiningOp();
  if (!isView(op) || op->getNumOperands() != 1)
    return false;
  mlir::Value viewed = op->getOperand(0);
  return bytesOf(value) < bytesOf(viewed) || isPart(viewed);
}

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_RECOMPUTE_VALUEVIEWS_H
