//===- VerifyModel.cpp - Checks a model -----------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "VerifyEntry.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"
#include "llvm/ADT/StringSet.h"

namespace cleave::graph {
#define GEN_PASS_DEF_VERIFYMODEL
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"
} // namespace cleave::graph

using namespace mlir;
using namespace cleave::graph;

LogicalResult cleave::graph::verifyEntry(func::FuncOp entry) {
  if (!entry.getBody().hasOneBlock())
    return entry.emitOpError("must have one block");
  llvm::StringSet<> names;
  for (BlockArgument argument : entry.getArguments()) {
    unsigned index = argument.getArgNumber();
    StringRef name = getArgString(entry, index, kNameAttr);
    if (name.empty()) {
      StringRef role = getArgString(entry, index, kRoleAttr);
      std::string what = role.empty()
                             ? std::string("a value")
                             : (role == "input" ? "an " : "a ") + role.str();
      return emitError(argument.getLoc())
             << what << ", argument " << index << " of '@" << entry.getSymName()
             << "', has no 'graph.name'";
    }
    if (!names.insert(name).second)
      return emitError(argument.getLoc())
             << "two arguments of '@" << entry.getSymName() << "' are named \""
             << name
             << "\"; a tied tensor is one argument with 'graph.aliases'";
  }
  for (Operation &op : entry.getBody().front().without_terminator()) {
    StringRef dialect = op.getName().getDialectNamespace();
    if (dialect != "graph" && dialect != "spmd")
      return op.emitOpError("is not an op of a model");
  }
  return success();
}

namespace {
struct VerifyModel final : cleave::graph::impl::VerifyModelBase<VerifyModel> {
  using VerifyModelBase::VerifyModelBase;

  void runOnOperation() override {
    FailureOr<func::FuncOp> loss = findEntry(getOperation(), entry);
    if (failed(loss))
      return signalPassFailure();
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (!function.isExternal() && failed(verifyEntry(function)))
        return signalPassFailure();
    if (failed(verifyLoss(*loss)))
      signalPassFailure();
  }

  LogicalResult verifyLoss(func::FuncOp function) {
    if (function.getNumResults() == 0)
      return function.emitError()
             << "'@" << entry << "' returns no loss to differentiate";
    for (unsigned i = 0; i < function.getNumResults(); ++i) {
      if (i > 0 && !function.getResultAttr(i, kLossAttr))
        continue;
      auto type = dyn_cast<RankedTensorType>(function.getResultTypes()[i]);
      if (!type || type.getRank() != 0 ||
          !isa<FloatType>(type.getElementType()))
        return function.emitError()
               << nameResult(function, i) << " of '@" << entry << "' has type "
               << function.getResultTypes()[i]
               << "; the loss must be a float tensor of rank 0";
    }
    return success();
  }
};
} // namespace
