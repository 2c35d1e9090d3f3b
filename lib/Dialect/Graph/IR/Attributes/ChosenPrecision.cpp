//===- ChosenPrecision.cpp - The precision of single ops ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Attributes/ChosenPrecision.h"

using namespace mlir;
using namespace cleave::graph;

void KeepPrecision::notifyOperationReplaced(Operation *op,
                                            ValueRange replacement) {
  Attribute precision = op->getAttr(kPrecisionAttr);
  if (!precision)
    return;
  llvm::SmallPtrSet<Operation *, 8> made;
  SmallVector<Operation *> work;
  // What replaces an op and was there before has readers, or the same choice.
  for (Value value : replacement)
    if (Operation *from = value.getDefiningOp();
        from && from != op && from->use_empty())
      work.push_back(from);
  while (!work.empty()) {
    Operation *from = work.pop_back_val();
    if (!made.insert(from).second)
      continue;
    if (!from->hasAttr(kPrecisionAttr))
      from->setAttr(kPrecisionAttr, precision);
    for (Value operand : from->getOperands())
      if (Operation *next = operand.getDefiningOp();
          next && next != op &&
          !llvm::is_contained(op->getOperands(), operand) &&
          llvm::all_of(next->getUsers(),
                       [&](Operation *user) { return made.contains(user); }))
        work.push_back(next);
  }
}
