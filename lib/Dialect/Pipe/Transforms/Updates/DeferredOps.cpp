//===- DeferredOps.cpp - What updates are made of -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "DeferredOps.h"
#include "cleave/Dialect/Graph/Analysis/StepRoles.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include <limits>

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

/// Whether `value` is an argument that is updated: a parameter or state.
bool DeferredOps::isHeld(Value value) {
  auto argument = dyn_cast<BlockArgument>(value);
  return argument && (argString(argument, graph::kRoleAttr) == "parameter" ||
                      argString(argument, graph::kRoleAttr) == "state");
}

void DeferredOps::findOps() {
  for (BlockArgument argument : body.getArguments()) {
    if (isHeld(argument))
      held.insert(argument);
    else if (argString(argument, graph::kRoleAttr) != "scalar")
      sampled.insert(argument);
  }
  graph::StepRoles roles(body);
  for (Operation &op : body.without_terminator()) {
    auto any = [&](auto test) { return llvm::any_of(op.getOperands(), test); };
    bool isLate = roles.isUpdate(&op);
    bool ofSamples = isa<graph::SeedOp>(op) ||
                     any([&](Value value) { return sampled.contains(value); });
    bool readsHeld = any([&](Value value) { return held.contains(value); });
    if (isLate)
      late.insert(&op);
    else if (ofSamples)
      sampled.insert(op.result_begin(), op.result_end());
    if (isLate && readsHeld)
      deferred.insert(&op);
    if (readsHeld && (isLate || !ofSamples))
      held.insert(op.result_begin(), op.result_end());
  }
  // What is made of the elements of a gradient, for deferred ops alone, is
  // deferred as well: the gradient is kept then, and not these values.
  auto isDeferred = [&](Operation *user) { return deferred.contains(user); };
  for (Operation &op : llvm::reverse(body.without_terminator()))
    if (late.contains(&op) && op.hasTrait<OpTrait::PointwiseOp>() &&
        cast<RankedTensorType>(op.getResult(0).getType()).getRank() != 0 &&
        !op.use_empty() && llvm::all_of(op.getUsers(), isDeferred))
      deferred.insert(&op);
}

LogicalResult DeferredOps::findUpdates() {
  llvm::StringMap<BlockArgument> arguments;
  for (BlockArgument argument : body.getArguments())
    arguments[argString(argument, graph::kNameAttr)] = argument;
  // The first reader of each argument, or of values that depend on it alone.
  // Ops that only updates read do not count.
  llvm::DenseMap<Value, int64_t> first;
  auto known = [&](Value value) {
    auto it = first.find(value);
    return it == first.end() ? std::numeric_limits<int64_t>::max() : it->second;
  };
  int64_t place = 0;
  for (Operation &op : llvm::reverse(body.without_terminator()))
    if (!late.contains(&op) && op.getNumResults() != 0 && isPure(&op) &&
        llvm::all_of(op.getUsers(), [&](Operation *user) {
          return deferred.contains(user) || ofUpdate.contains(user);
        }))
      ofUpdate.insert(&op);
  auto report =
      [&](Location loc) {
        return emitError(loc)
               << "this reads the result of an update, which "
                  "--optimizer-fusion=forward defers to the next step";
      };
  for (Operation &op : body.without_terminator()) {
    ++place;
    if (deferred.contains(&op) && op.getNumResults() == 0)
      return report(op.getLoc());
    if (!deferred.contains(&op) && !ofUpdate.contains(&op))
      for (Value operand : op.getOperands())
        if (isHeld(operand))
          first[operand] = std::min(known(operand), place);
  }
  for (auto [i, value] : llvm::enumerate(body.getTerminator()->getOperands())) {
    bool moves = deferred.contains(value.getDefiningOp());
    auto name = entry.getResultAttrOfType<StringAttr>(i, graph::kUpdatesAttr);
    if (!name) {
      if (moves)
        return report(value.getLoc());
      continue;
    }
    BlockArgument argument = arguments.lookup(name);
    if (!moves || !argument)
      continue;
    int64_t reader = known(argument);
    if (StringRef of = argString(argument, graph::kOfAttr); !of.empty())
      if (BlockArgument whole = arguments.lookup(of))
        reader = std::min(reader, known(whole));
    updates.push_back({unsigned(i), argument, reader});
  }
  llvm::sort(updates, [](const Update &a, const Update &b) {
    return std::pair(a.reader, a.result) < std::pair(b.reader, b.result);
  });
  return success();
}

LogicalResult DeferredOps::verifyOperands() {
  for (Operation &op : body.without_terminator()) {
    if (!deferred.contains(&op))
      continue;
    for (Value operand : op.getOperands())
      if (sampled.contains(operand) && !late.contains(operand.getDefiningOp()))
        return op.emitOpError("is an update that depends on samples: "
                              "--optimizer-fusion=forward cannot defer it to "
                              "the next step");
  }
  return success();
}

LogicalResult DeferredOps::find() {
  findOps();
  if (failed(findUpdates()))
    return failure();
  return verifyOperands();
}
