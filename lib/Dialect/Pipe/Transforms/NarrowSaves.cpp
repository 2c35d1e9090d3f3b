//===- NarrowSaves.cpp - Saved values in fewer bits -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Delayed precision reduction (Jain et al., Gist, ISCA 2018, section 4.3):
/// forward computes with what it has, and backward reads a rounded copy of what
/// was saved.
///
//===----------------------------------------------------------------------===//

#include "SavedValues.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/TensorBytes.h"
#include "cleave/Dialect/Pipe/IR/PartFunctions.h"
#include "cleave/Dialect/Pipe/Transforms/Passes.h"

namespace cleave::pipe {
#define GEN_PASS_DEF_NARROWSAVES
#include "cleave/Dialect/Pipe/Transforms/Passes.h.inc"
} // namespace cleave::pipe

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

/// Whether `value` is a statistic of rows, much smaller than what it is computed
/// from: rounding it saves little, and changes whole rows.
static bool isStatistic(Value value) {
  auto costed = dyn_cast_or_null<graph::CostOpInterface>(value.getDefiningOp());
  if (!costed)
    return false;
  graph::OpCost cost = costed.getCost();
  return cost.work != graph::WorkClass::Contraction &&
         bytesOf(value) * 8 < cost.bytesRead;
}

namespace {
/// Finds what outputs of the step depend on other than by gradients: the loss,
/// which is computed in backward where the head is one op with its gradient.
class Outputs {
public:
  bool reachedFrom(Value value) {
    auto [it, fresh] = known.try_emplace(value, false);
    if (!fresh)
      return it->second;
    bool reached = llvm::any_of(value.getUses(), [&](OpOperand &use) {
      return isa<ReturnOp>(use.getOwner()) ? !isUpdate(use)
                                           : reachedThrough(use);
    });
    return known[value] = reached;
  }

private:
  static bool isUpdate(OpOperand &use) {
    auto program = cast<ProgramOp>(use.getOwner()->getParentOp());
    return program.getResultAttr(use.getOperandNumber(),
                                 graph::kUpdatesAttr) != nullptr;
  }
  /// By the results of the part that reads it.
  bool reachedThrough(OpOperand &use) {
    auto invoke = dyn_cast<InvokeOp>(use.getOwner());
    if (!invoke)
      return true;
    Block &part = invoke.getPartFunction().front();
    llvm::DenseSet<Value> reached{part.getArgument(use.getOperandNumber())};
    for (Operation &op : part.without_terminator())
      if (!isa<graph::GradientOp>(op) &&
          llvm::any_of(op.getOperands(),
                       [&](Value operand) { return reached.contains(operand); }))
        reached.insert(op.result_begin(), op.result_end());
    for (auto [result, value] : llvm::zip_equal(
             invoke->getResults(), part.getTerminator()->getOperands()))
      if (reached.contains(value) && reachedFrom(result))
        return true;
    return false;
  }
  llvm::DenseMap<Value, bool> known;
};
} // namespace

/// Whether only backward parts of the same stage read `result`, a value of
/// floats wider than `element`, and only for gradients.
static bool isNarrowed(InvokeOp forward, OpResult result, FloatType element,
                       Outputs &outputs) {
  auto type = cast<RankedTensorType>(result.getType());
  auto own = dyn_cast<FloatType>(type.getElementType());
  if (!own || own.getWidth() <= element.getWidth() || result.use_empty() ||
      !forward.isSaved(result.getResultNumber()))
    return false;
  Value value = forward.getPartFunction().front().getTerminator()->getOperand(
      result.getResultNumber());
  return value.getDefiningOp() && !isStatistic(value) &&
         !outputs.reachedFrom(result) &&
         llvm::all_of(result.getUsers(), [&](Operation *user) {
           auto reader = dyn_cast<InvokeOp>(user);
           return reader && reader.getPart() != "F" && !reader.getOnce() &&
                  !reader.isConditional() &&
                  reader.getStage() == forward.getStage();
         });
}

static void setSignature(func::FuncOp function) {
  Block &block = function.front();
  function.setFunctionType(FunctionType::get(
      function.getContext(), block.getArgumentTypes(),
      block.getTerminator()->getOperandTypes()));
}

/// Saves `result` as `element`; what reads it converts it back before its first
/// use.
static void narrow(InvokeOp forward, OpResult result, FloatType element) {
  func::FuncOp function = forward.getPartFunction();
  OpOperand &returned = function.front().getTerminator()->getOpOperand(
      result.getResultNumber());
  auto type = cast<RankedTensorType>(result.getType());
  OpBuilder builder(returned.getOwner());
  Value rounded = graph::Formula{builder, returned.get().getLoc()}.cast(
      returned.get(), element);
  rounded.getDefiningOp()->setAttr(kNarrowedAttr, builder.getUnitAttr());
  returned.set(rounded);
  setSignature(function);
  result.setType(type.clone(element));
  for (OpOperand &use : result.getUses()) {
    func::FuncOp reader = cast<InvokeOp>(use.getOwner()).getPartFunction();
    BlockArgument argument = reader.getArgument(use.getOperandNumber());
    argument.setType(type.clone(element));
    Operation *first = nullptr;
    for (Operation *user : argument.getUsers()) {
      user = reader.front().findAncestorOpInBlock(*user);
      if (!first || user->isBeforeInBlock(first))
        first = user;
    }
    if (first) {
      builder.setInsertionPoint(first);
      Value wide = graph::Formula{builder, argument.getLoc()}.cast(
          argument, type.getElementType());
      argument.replaceAllUsesExcept(wide, wide.getDefiningOp());
    }
    setSignature(reader);
  }
}

namespace {
struct NarrowSaves final : cleave::pipe::impl::NarrowSavesBase<NarrowSaves> {
  using NarrowSavesBase::NarrowSavesBase;

  void runOnOperation() override {
    MLIRContext *context = &getContext();
    FloatType element;
    if (type == "bf16")
      element = BFloat16Type::get(context);
    else if (type == "fp16")
      element = Float16Type::get(context);
    else if (type == "fp8")
      element = Float8E4M3FNType::get(context);
    if (!element) {
      getOperation().emitError("unknown type of saved values '")
          << type << "'; there are bf16, fp16 and fp8";
      return signalPassFailure();
    }
    for (auto program : getOperation().getOps<ProgramOp>()) {
      if (failed(verifyPartFunctions(program)))
        return signalPassFailure();
      SmallVector<InvokeOp> forward;
      for (auto invoke : program.getBody().getOps<InvokeOp>())
        if (invoke.getPart() == "F")
          forward.push_back(invoke);
      Blocks blocks(forward);
      Outputs outputs;
      for (InvokeOp invoke : forward)
        for (OpResult result : invoke->getResults())
          if (isNarrowed(invoke, result, element, outputs))
            narrow(invoke, result, element);
      if (program->hasAttr(kSavedAttr))
        recordSaved(program, blocks);
    }
  }
};
} // namespace
