//===- ScaledOperand.cpp - Values of the elements of one tensor -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/ShardingRules/ScaledOperand.h"

using namespace mlir;
using namespace cleave::graph;

BlockArgument cleave::graph::pointwiseArgument(Value value) {
  auto shapeOf = [](Value v) {
    return cast<RankedTensorType>(v.getType()).getShape();
  };
  ArrayRef<int64_t> shape = shapeOf(value);
  BlockArgument found;
  SmallVector<Value> work{value};
  llvm::DenseSet<Value> seen;
  while (!work.empty()) {
    Value next = work.pop_back_val();
    Operation *op = next.getDefiningOp();
    // Of other shapes is what pointwise ops repeat.
    if (!seen.insert(next).second || shapeOf(next) != shape ||
        isa_and_nonnull<BroadcastOp>(op))
      continue;
    if (!op) {
      if (found && found != next)
        return {};
      found = cast<BlockArgument>(next);
    } else if (op->hasTrait<OpTrait::PointwiseOp>()) {
      llvm::append_range(work, op->getOperands());
    } else {
      return {};
    }
  }
  return found;
}
