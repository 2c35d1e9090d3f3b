//===- VerifyStep.cpp - Checks a training step ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "VerifyEntry.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"
#include "llvm/ADT/StringSet.h"

namespace cleave::graph {
#define GEN_PASS_DEF_VERIFYSTEP
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"
} // namespace cleave::graph

using namespace mlir;
using namespace cleave::graph;

namespace {
/// Checks one entry.
class StepVerifier {
public:
  explicit StepVerifier(func::FuncOp entry) : entry(entry) {}

  LogicalResult run() {
    if (failed(verifyEntry(entry)))
      return failure();
    for (BlockArgument argument : entry.getArguments())
      arguments[getArgString(entry, argument.getArgNumber(), kNameAttr)] =
          argument;
    if (failed(verifyResults()))
      return failure();
    for (Operation &op : entry.getBody().front().without_terminator())
      if (failed(verifyOp(op)))
        return failure();
    return success();
  }

private:
  LogicalResult verifyResults() {
    for (auto [i, type] : llvm::enumerate(entry.getResultTypes())) {
      auto updated = entry.getResultAttrOfType<StringAttr>(i, kUpdatesAttr);
      if (!updated) {
        if (!entry.getResultAttr(i, kNameAttr))
          return emitResultError(entry, i)
                 << " has neither 'graph.name' nor 'graph.updates'";
        continue;
      }
      BlockArgument argument = arguments.lookup(updated);
      if (!argument)
        return emitResultError(entry, i)
               << " updates an argument that '@" << entry.getSymName()
               << "' does not have";
      if (argument.getType() != type)
        return emitResultError(entry, i)
               << " has type " << type << ", and the argument has type "
               << argument.getType();
      if (!updates.insert(updated).second)
        return emitResultError(entry, i) << " is the second one of it";
    }
    return success();
  }

  LogicalResult verifyOp(Operation &op) {
    if (isa<GraphDialect>(op.getDialect()) &&
        !(isa<ShardingRuleOpInterface>(op) && isa<CostOpInterface>(op)))
      return op.emitOpError("has no sharding rule, or no cost");
    auto gradient = dyn_cast<GradientOp>(op);
    if (!gradient)
      return success();
    StringRef name = gradient.getParameter();
    BlockArgument parameter = arguments.lookup(name);
    // One that was delayed is state.
    if (!parameter || !(isTrained(entry, parameter.getArgNumber()) ||
                        isOptimizerState(entry, parameter.getArgNumber())))
      return op.emitOpError("is of \"")
             << name << "\", which is not a trained parameter of '@"
             << entry.getSymName() << "', nor state of one";
    if (!gradients.insert(name).second)
      return op.emitOpError("is the second gradient of \"") << name << "\"";
    if (!updates.contains(name))
      return op.emitOpError("is of \"")
             << name << "\", which no result updates";
    return success();
  }

  func::FuncOp entry;
  llvm::StringMap<BlockArgument> arguments;
  /// The arguments that results update, and the parameters that have gradients.
  llvm::StringSet<> updates, gradients;
};

struct VerifyStep final : cleave::graph::impl::VerifyStepBase<VerifyStep> {
  void runOnOperation() override {
    bool trains = false;
    for (auto function : getOperation().getOps<func::FuncOp>()) {
      if (function.isExternal())
        continue;
      if (failed(StepVerifier(function).run()))
        return signalPassFailure();
      // The seed of gradients that are all zero is gone.
      for (unsigned i = 0; i < function.getNumResults(); ++i)
        trains |= bool(function.getResultAttr(i, kUpdatesAttr));
    }
    if (trains)
      return;
    getOperation().emitError("no entry has a result that updates a parameter");
    signalPassFailure();
  }
};
} // namespace
