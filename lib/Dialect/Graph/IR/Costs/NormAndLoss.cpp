//===- NormAndLoss.cpp - Costs of norms, losses and positions -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CostBuilder.h"

using namespace mlir;
using namespace cleave::graph;

/// An op on rows, with operations per element of operand `measured`.
static OpCost rowwise(Operation *op, int64_t flopsPerElement, Saved saved = {},
                      unsigned measured = 0) {
  return streamingCost(op, WorkClass::RowWise,
                       flopsPerElement * elementsOf(op->getOperand(measured)),
                       saved);
}

OpCost LayerNormOp::getCost() {
  Saved saved{{0}, {1, 2}};
  if (getWeight())
    saved.operands.push_back(1);
  return rowwise(getOperation(), 8, saved);
}
OpCost LayerNormGradOp::getCost() { return rowwise(getOperation(), 11); }
OpCost LayerNormWeightGradOp::getCost() { return rowwise(getOperation(), 4); }

OpCost RmsNormOp::getCost() {
  Saved saved{{0}, {1}};
  if (getWeight())
    saved.operands.push_back(1);
  return rowwise(getOperation(), 4, saved);
}
OpCost RmsNormGradOp::getCost() { return rowwise(getOperation(), 8); }
OpCost RmsNormWeightGradOp::getCost() { return rowwise(getOperation(), 3); }

OpCost SoftmaxOp::getCost() { return rowwise(getOperation(), 14, {{}, {0}}); }
OpCost SoftmaxGradOp::getCost() { return rowwise(getOperation(), 4); }

OpCost CrossEntropyOp::getCost() {
  return rowwise(getOperation(), 13, {{0, 1}, {1}});
}
OpCost CrossEntropyGradOp::getCost() {
  return rowwise(getOperation(), 13, {}, /*measured=*/1);
}

OpCost HeadLossOp::getCost() {
  // One contraction for the logits; two for the gradients of input and weight.
  int64_t classes = cast<RankedTensorType>(getWeight().getType()).getDimSize(0);
  int64_t products = getNumResults() > 1 ? 3 : 1;
  int64_t rows = elementsOf(getLoss());
  return contractionCost(getOperation(), getInput(), getWeight(),
                         products * 2 * classes * elementsOf(getInput()) +
                             26 * rows * classes);
}

OpCost RopeOp::getCost() {
  return streamingCost(getOperation(), WorkClass::ElementWise,
                       3 * elementsOf(getInput()), {{1, 2}, {}});
}
