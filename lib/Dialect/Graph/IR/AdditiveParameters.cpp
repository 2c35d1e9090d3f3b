//===- AdditiveParameters.cpp - Parameters that are added -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/AdditiveParameters.h"

using namespace mlir;
using namespace cleave::graph;

AdditiveParameters::AdditiveParameters(ArrayRef<Value> parameters,
                                       ArrayRef<Operation *> forward)
    : model(forward.begin(), forward.end()),
      alone(parameters.begin(), parameters.end()) {
  for (Operation *op : forward)
    if (llvm::all_of(op->getOperands(),
                     [&](Value value) { return alone.contains(value); }))
      alone.insert(op->result_begin(), op->result_end());
}

/// Whether `gradient` depends on `resultGradients` and constants alone.
bool AdditiveParameters::hasConstantSlope(
    Value gradient, ArrayRef<Value> resultGradients) const {
  SmallVector<Value> pending{gradient};
  llvm::DenseSet<Value> seen;
  while (!pending.empty()) {
    Value value = pending.pop_back_val();
    if (llvm::is_contained(resultGradients, value) ||
        !seen.insert(value).second)
      continue;
    Operation *op = value.getDefiningOp();
    if (!op || (model.contains(op) && op->getNumOperands() != 0))
      return false;
    llvm::append_range(pending, op->getOperands());
  }
  return true;
}

void AdditiveParameters::visit(Operation &op, ArrayRef<Value> resultGradients,
                               ArrayRef<Value> operandGradients) {
  for (auto [operand, gradient] :
       llvm::zip_equal(op.getOperands(), operandGradients)) {
    if (!gradient || !alone.contains(operand))
      continue;
    read.insert(operand);
    bool added = hasConstantSlope(gradient, resultGradients);
    for (Value result : op.getResults())
      if (alone.contains(result))
        added &= contains(result);
    if (!added)
      others.insert(operand);
  }
}
