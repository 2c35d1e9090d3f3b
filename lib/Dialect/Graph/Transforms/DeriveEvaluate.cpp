//===- DeriveEvaluate.cpp - The loss without randomness -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/Analysis/InputValues.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"

namespace cleave::graph {
#define GEN_PASS_DEF_DERIVEEVALUATE
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"
} // namespace cleave::graph

using namespace mlir;
using namespace cleave::graph;

namespace {

struct DeriveEvaluate final
    : cleave::graph::impl::DeriveEvaluateBase<DeriveEvaluate> {
  using DeriveEvaluateBase::DeriveEvaluateBase;

  void runOnOperation() override {
    FailureOr<func::FuncOp> source = findEntry(getOperation(), entry);
    if (failed(source))
      return signalPassFailure();
    if (!getOperation()->hasAttr(kUnevaluatedAttr)) {
      FailureOr<func::FuncOp> copy = evaluation(*source);
      if (failed(copy) || failed(removeRandomness(*copy)))
        return signalPassFailure();
      returnWeight(*copy);
    }
    if (dropEntry && SymbolTable::symbolKnownUseEmpty(*source, getOperation()))
      source->erase();
  }

  /// The model as it is evaluated: a copy of `source`, or the module's own
  /// entry, if it computes something else then.
  FailureOr<func::FuncOp> evaluation(func::FuncOp source) {
    auto own = getOperation().lookupSymbol<func::FuncOp>(target);
    if (own && own.getBody().hasOneBlock())
      return own;
    FailureOr<func::FuncOp> copy = cloneEntry(source, target);
    if (succeeded(copy) && failed(dropOthers(*copy)))
      return failure();
    return copy;
  }

  /// An evaluation changes no buffer, and metrics are those of training.
  static LogicalResult dropOthers(func::FuncOp function) {
    llvm::BitVector dropped(function.getNumResults());
    for (unsigned i = 0; i < function.getNumResults(); ++i) {
      auto name = function.getResultAttrOfType<StringAttr>(i, kNameAttr);
      if (function.getResultAttr(i, kUpdatesAttr) ||
          (name && name.getValue().starts_with("metric/")))
        dropped.set(i);
    }
    if (dropped.none())
      return success();
    function.front().getTerminator()->eraseOperands(dropped);
    return function.eraseResults(dropped);
  }

  static LogicalResult removeRandomness(func::FuncOp function) {
    IRRewriter rewriter(function.getContext());
    function.walk([&](RandomOpInterface op) {
      rewriter.setInsertionPoint(op);
      op.removeRandomness(rewriter);
    });
    for (unsigned i = function.getNumArguments(); i-- > 0;) {
      if (!hasRole(function, i, "rng"))
        continue;
      for (Operation *user : function.getArgument(i).getUsers())
        return user->emitOpError("reads the random generator's state and "
                                 "cannot do without it in evaluation");
      if (failed(function.eraseArgument(i)))
        return failure();
    }
    return success();
  }

  /// A mean over counted elements also returns the count, so that the means of
  /// several batches can be combined.
  static void returnWeight(func::FuncOp function) {
    auto returnOp = dyn_cast<func::ReturnOp>(function.front().getTerminator());
    if (!returnOp || returnOp.getNumOperands() == 0)
      return;
    Value weight = findMeanCount(function, returnOp.getOperand(0));
    if (!weight)
      return;
    Builder builder(function.getContext());
    unsigned index = function.getNumResults();
    // Inserting a result of tensor type cannot fail.
    (void)function.insertResult(
        index, weight.getType(),
        builder.getDictionaryAttr(builder.getNamedAttr(
            kNameAttr, builder.getStringAttr(kLossWeightName))));
    returnOp.getOperandsMutable().append(weight);
  }
};

} // namespace
