//===- InputValues.cpp - Values that depend on inputs alone ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/Analysis/InputValues.h"
#include "cleave/Dialect/Graph/Analysis/Slices.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/Formula.h"

using namespace mlir;
using namespace cleave::graph;

bool cleave::graph::dependsOnInputsAlone(func::FuncOp entry, Value value) {
  bool any = false;
  for (Operation *op : backwardSlice(value))
    for (Value operand : op->getOperands())
      if (auto argument = dyn_cast<BlockArgument>(operand)) {
        if (!hasRole(entry, argument.getArgNumber(), "input") &&
            !hasRole(entry, argument.getArgNumber(), "buffer"))
          return false;
        any = true;
      }
  return any;
}

/// Whether `value` is a scalar: a sum over elements of inputs.
static bool isSumOfInputs(func::FuncOp entry, Value value) {
  return tensorTypeOf(value).getRank() == 0 &&
         dependsOnInputsAlone(entry, value) &&
         llvm::any_of(backwardSlice(value), [](Operation *op) {
           auto reduce = dyn_cast<ReduceOp>(op);
           return reduce && reduce.getKind() == ReductionKind::Sum;
         });
}

Value cleave::graph::findMeanCount(func::FuncOp entry, Value loss) {
  Operation *op = loss.getDefiningOp();
  if (isa_and_nonnull<CastOp, ReshapeOp, NegOp>(op))
    return findMeanCount(entry, op->getOperand(0));
  if (isa_and_nonnull<AddOp, SubOp>(op)) {
    // A sum of means is a mean if all divide by the same value.
    Value left = findMeanCount(entry, op->getOperand(0));
    return left && left == findMeanCount(entry, op->getOperand(1)) ? left
                                                                   : Value();
  }
  if (!isa_and_nonnull<MulOp, DivOp>(op))
    return nullptr;
  Value left = op->getOperand(0), right = op->getOperand(1);
  if (isa<DivOp>(op) && isSumOfInputs(entry, right))
    return right;
  if (getSplatValue(right))
    return findMeanCount(entry, left);
  if (isa<MulOp>(op) && getSplatValue(left))
    return findMeanCount(entry, right);
  return nullptr;
}
