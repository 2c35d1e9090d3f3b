//===- UpdateConflicts.cpp - What an update for each contradicts ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "EachProgram.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "mlir/Analysis/SliceAnalysis.h"
#include "mlir/IR/IRMapping.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

/// Whether a result of `invoke` updates an argument of the program.
bool EachProgram::isUpdate(InvokeOp invoke) {
  return llvm::any_of(invoke->getOpResults(), [](OpResult result) {
    return !updatedArgument(result).empty();
  });
}

/// Refuses parameters that several stages hold: their copies would diverge.
LogicalResult EachProgram::checkShared() {
  llvm::StringMap<InvokeOp> first;
  for (auto [i, value] : llvm::enumerate(terminator().getValues())) {
    StringRef name = resultText(i, graph::kUpdatesAttr);
    auto invoke = value.getDefiningOp<InvokeOp>();
    if (name.empty() || !invoke)
      continue;
    if (BlockArgument argument = findArgument(name);
        argument && argumentText(argument, graph::kRoleAttr) == "buffer")
      return program.emitOpError("writes to buffer '")
             << name
             << "', which an asynchronous schedule would do while other "
                "micro-batches read it; use a synchronous schedule";
    auto [it, fresh] = first.try_emplace(name, invoke);
    if (fresh)
      continue;
    Location loc = program.getLoc();
    if (BlockArgument argument = findArgument(name))
      for (OpOperand &use : argument.getUses())
        if (auto reader = dyn_cast<InvokeOp>(use.getOwner()))
          loc = reader.getPartFunction()
                    .getArgument(use.getOperandNumber())
                    .getLoc();
    return emitError(loc)
           << "'" << name << "' is held by stages " << it->second.getStage()
           << " and " << invoke.getStage()
           << ", which an asynchronous schedule updates at different times: "
              "its copies would diverge; use a synchronous schedule, begin "
              "stages so that one of them has all its uses, or untie it";
  }
  return success();
}

/// Refuses updates that depend on earlier stages: backward of earlier stages
/// runs later, so that such an update would wait for the whole backward.
LogicalResult EachProgram::checkWaits(InvokeOp invoke) {
  for (auto [i, input] : llvm::enumerate(invoke.getInputs())) {
    auto from = input.getDefiningOp<InvokeOp>();
    if (!from || from.getStage() >= invoke.getStage())
      continue;
    func::FuncOp part = invoke.getPartFunction();
    return emitError(part.getArgument(i).getLoc())
           << "the update of stage " << invoke.getStage()
           << " reads this of stage " << from.getStage()
           << ": with an asynchronous schedule no stage waits for the "
              "gradients of earlier ones; remove values that depend on all "
              "gradients, such as clipping to a norm, or begin stages at other "
              "parameters";
  }
  WalkResult found = invoke.getPartFunction().walk([](graph::CheckOp check) {
    check.emitOpError(
        "of gradients stops a step as a whole, of which an asynchronous "
        "schedule has made updates by then; remove it, or use a synchronous "
        "schedule");
    return WalkResult::interrupt();
  });
  return failure(found.wasInterrupted());
}

/// Moves the checks of inputs to a prologue of their stage, so that they run
/// for all micro-batches before the first update.
LogicalResult EachProgram::moveChecks(InvokeOp invoke) {
  func::FuncOp part = invoke.getPartFunction();
  SmallVector<graph::CheckOp> checks(part.getOps<graph::CheckOp>());
  if (checks.empty())
    return success();
  BackwardSliceOptions options;
  options.omitBlockArguments = true;
  llvm::SetVector<Operation *> ops;
  for (graph::CheckOp check : checks) {
    if (failed(getBackwardSlice(check.getOperation(), &ops, options)))
      return check.emitOpError("depends on an op whose operands cannot be "
                               "analyzed");
    ops.insert(check);
  }
  llvm::SetVector<Value> inputs;
  for (Operation *op : ops)
    for (Value operand : op->getOperands())
      if (auto argument = dyn_cast<BlockArgument>(operand)) {
        StringRef role = argumentText(
            invoke.getInputs()[argument.getArgNumber()], graph::kRoleAttr);
        if (role != "input" && role != "buffer")
          return op->emitOpError(
              "is read by a check, and depends on more than inputs: an "
              "asynchronous schedule has made updates by then; use a "
              "synchronous schedule");
        inputs.insert(argument);
      }
  OpBuilder inside(part);
  auto prologue = func::FuncOp::create(
      inside, part.getLoc(), (part.getName() + ".check").str(),
      inside.getFunctionType(ValueRange(inputs.getArrayRef()).getTypes(), {}));
  prologue.setPrivate();
  Block *block = prologue.addEntryBlock();
  IRMapping mapping;
  mapping.map(inputs.getArrayRef(), block->getArguments());
  inside.setInsertionPointToEnd(block);
  for (Operation &op : part.front())
    if (ops.contains(&op))
      inside.clone(op, mapping);
  func::ReturnOp::create(inside, part.getLoc());
  SmallVector<Value> operands;
  for (Value input : inputs)
    operands.push_back(
        invoke.getInputs()[cast<BlockArgument>(input).getArgNumber()]);
  builder.setInsertionPointToStart(&program.getBody().front());
  InvokeOp::create(builder, invoke.getLoc(), TypeRange(), prologue.getSymName(),
                   operands, "P", /*once=*/false,
                   SmallVector<int64_t>(operands.size(), -1),
                   builder.getArrayAttr({}), invoke.getStage());
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(part.front())))
    if (ops.contains(&op) &&
        (isa<graph::CheckOp>(op) || isOpTriviallyDead(&op)))
      op.erase();
  return success();
}
