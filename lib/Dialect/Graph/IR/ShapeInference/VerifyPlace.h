//===- VerifyPlace.h - The part of a dimension that an op holds -*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_GRAPH_IR_SHAPEINFERENCE_VERIFYPLACE_H
#define CLEAVE_LIB_DIALECT_GRAPH_IR_SHAPEINFERENCE_VERIFYPLACE_H

#include "llvm/Support/LogicalResult.h"

namespace cleave::graph {

/// Checks `origin` and `global_size` of a shard, or of a padded dimension.
template <typename Op> llvm::LogicalResult verifyPlace(Op op) {
  if (op.getOrigin() && !op.getGlobalSize())
    return op.emitOpError("origin needs a global_size");
  if (op.getOrigin() && op.getOrigin().getType().getDimSize(0) != 1)
    return op.emitOpError("origin must hold one value");
  if (op.getGlobalSize() && static_cast<int64_t>(*op.getGlobalSize()) < 0)
    return op.emitOpError("global_size must not be negative");
  return mlir::success();
}

} // namespace cleave::graph

#endif // CLEAVE_LIB_DIALECT_GRAPH_IR_SHAPEINFERENCE_VERIFYPLACE_H
