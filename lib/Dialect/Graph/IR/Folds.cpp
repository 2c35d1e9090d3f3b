//===- Folds.cpp - Folds of the graph ops ---===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave::graph;

OpFoldResult ConstantOp::fold(FoldAdaptor adaptor) { return getValue(); }

OpFoldResult NotOp::fold(FoldAdaptor) {
  // not(not(x)) is x.
  if (auto producer = getInput().getDefiningOp<NotOp>())
    return producer.getInput();
  return {};
}

/// A layout op that keeps shape and order folds to its operand.
template <typename Op> static OpFoldResult foldSameType(Op op) {
  if (op.getInput().getType() == op.getType())
    return op.getInput();
  return {};
}

OpFoldResult CastOp::fold(FoldAdaptor) { return foldSameType(*this); }

OpFoldResult BroadcastOp::fold(FoldAdaptor) { return foldSameType(*this); }

OpFoldResult ReshapeOp::fold(FoldAdaptor) {
  if (OpFoldResult same = foldSameType(*this))
    return same;
  // reshape(reshape(x)) is one reshape of x.
  if (auto producer = getInput().getDefiningOp<ReshapeOp>()) {
    getInputMutable().assign(producer.getInput());
    return getResult();
  }
  return {};
}

OpFoldResult TransposeOp::fold(FoldAdaptor) {
  ArrayRef<int64_t> permutation = getPermutation();
  if (llvm::equal(permutation, llvm::seq<int64_t>(0, permutation.size())))
    return getInput();
  auto producer = getInput().getDefiningOp<TransposeOp>();
  if (!producer)
    return {};
  SmallVector<int64_t> composed;
  for (int64_t dim : permutation)
    composed.push_back(producer.getPermutation()[dim]);
  if (llvm::equal(composed, llvm::seq<int64_t>(0, composed.size())))
    return producer.getInput();
  getInputMutable().assign(producer.getInput());
  setPermutation(composed);
  return getResult();
}

OpFoldResult SliceOp::fold(FoldAdaptor) {
  if (getInput().getType() == getType() &&
      llvm::all_of(getOffsets(), [](int64_t offset) { return offset == 0; }))
    return getInput();
  return {};
}
