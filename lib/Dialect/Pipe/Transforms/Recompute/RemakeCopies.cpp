//===- RemakeCopies.cpp - Copies of parameters again in backward ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// With one micro-batch, a copy of a parameter in fewer bits is read once in
/// forward and once in backward. In between it takes memory beside the
/// parameter, which is there anyway; backward makes it again from that.
///
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/TensorBytes.h"
#include "cleave/Dialect/Pipe/IR/PartFunctions.h"
#include "cleave/Dialect/Pipe/Transforms/Passes.h"

namespace cleave::pipe {
#define GEN_PASS_DEF_REMAKECOPIES
#include "cleave/Dialect/Pipe/Transforms/Passes.h.inc"
} // namespace cleave::pipe

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

namespace {
/// How a result of a part is made of arguments of the program.
struct Made {
  /// Smaller copies of arguments of the part: one element-wise op on each.
  SmallVector<Operation *> copies;
  /// What concatenates them, or null.
  Operation *join = nullptr;

  static std::optional<Made> find(InvokeOp gather, unsigned index);
};
} // namespace

/// Whether `op` makes a smaller copy of an argument of the program.
static bool isCopy(InvokeOp gather, Operation *op) {
  auto costed = dyn_cast_or_null<graph::CostOpInterface>(op);
  if (!costed || !isPure(op) || op->getNumOperands() != 1 ||
      costed.getCost().work != graph::WorkClass::ElementWise)
    return false;
  auto argument = dyn_cast<BlockArgument>(op->getOperand(0));
  return argument && bytesOf(op->getResult(0)) < bytesOf(argument) &&
         isa<BlockArgument>(gather.getInputs()[argument.getArgNumber()]);
}

std::optional<Made> Made::find(InvokeOp gather, unsigned index) {
  Value value =
      gather.getPartFunction().front().getTerminator()->getOperand(index);
  Operation *op = value.getDefiningOp();
  if (isCopy(gather, op))
    return Made{{op}};
  if (!isa_and_nonnull<graph::ConcatOp>(op) ||
      !llvm::all_of(op->getOperands(), [&](Value operand) {
        return isCopy(gather, operand.getDefiningOp());
      }))
    return std::nullopt;
  Made result{{}, op};
  for (Value operand : op->getOperands())
    result.copies.push_back(operand.getDefiningOp());
  return result;
}

/// Lets `reader` make its operand `index` before it first reads it. It reads
/// what `gather` copies instead, if it does not yet.
static void remake(InvokeOp gather, InvokeOp reader, unsigned index,
                   const Made &made) {
  func::FuncOp function = reader.getPartFunction();
  Block &body = function.front();
  BlockArgument argument = body.getArgument(index);
  Operation *first = nullptr;
  for (Operation *user : argument.getUsers()) {
    user = body.findAncestorOpInBlock(*user);
    if (!first || user->isBeforeInBlock(first))
      first = user;
  }
  SmallVector<Value> inputs(reader.getInputs());
  SmallVector<int64_t> split(reader.getSplit());
  // The place of what is made is that of the first of what it is made of.
  bool placed = false;
  SmallVector<BlockArgument> originals;
  for (Operation *copy : made.copies) {
    Value original = gather.getInputs()[cast<BlockArgument>(copy->getOperand(0))
                                            .getArgNumber()];
    BlockArgument known;
    for (auto [i, input] : llvm::enumerate(inputs))
      if (input == original && split[i] < 0)
        known = body.getArgument(i);
    if (!known && !placed) {
      placed = true;
      known = argument;
      inputs[index] = original;
    } else if (!known) {
      known = body.addArgument(original.getType(), original.getLoc());
      inputs.push_back(original);
      split.push_back(-1);
    }
    originals.push_back(known);
  }
  if (first) {
    OpBuilder builder(first);
    SmallVector<Operation *> clones;
    for (Operation *copy : made.copies)
      clones.push_back(builder.clone(*copy));
    Operation *last = clones.front();
    if (made.join) {
      last = builder.clone(*made.join);
      for (auto [i, clone] : llvm::enumerate(clones))
        last->setOperand(i, clone->getResult(0));
    }
    argument.replaceAllUsesWith(last->getResult(0));
    for (auto [clone, original] : llvm::zip_equal(clones, originals))
      clone->setOperand(0, original);
  }
  if (placed) {
    argument.setType(inputs[index].getType());
  } else {
    body.eraseArgument(index);
    split.erase(split.begin() + index);
    inputs.erase(inputs.begin() + index);
  }
  reader.getInputsMutable().assign(inputs);
  reader.setSplit(split);
  function.setFunctionType(
      FunctionType::get(function.getContext(), body.getArgumentTypes(),
                        body.getTerminator()->getOperandTypes()));
}

namespace {
struct RemakeCopies final : cleave::pipe::impl::RemakeCopiesBase<RemakeCopies> {
  void runOnOperation() override {
    for (auto program : getOperation().getOps<ProgramOp>()) {
      if (failed(verifyPartFunctions(program)))
        return signalPassFailure();
      // Several micro-batches would each make the copies.
      if (program.getMicroBatches() != 1)
        continue;
      for (auto gather :
           llvm::make_early_inc_range(program.getBody().getOps<InvokeOp>())) {
        if (gather.getPart() != "G")
          continue;
        remakeCopiesOf(gather);
        // Where forward reads none, nothing reads them any more.
        if (!gather.use_empty())
          continue;
        func::FuncOp function = gather.getPartFunction();
        gather.erase();
        if (SymbolTable::symbolKnownUseEmpty(function, getOperation()))
          function.erase();
      }
    }
  }

private:
  /// Backward parts of the same stage no longer read what `gather` copies.
  static void remakeCopiesOf(InvokeOp gather) {
    for (OpResult result : gather->getResults()) {
      std::optional<Made> made = Made::find(gather, result.getResultNumber());
      if (!made)
        continue;
      for (OpOperand &use : llvm::make_early_inc_range(result.getUses())) {
        auto reader = dyn_cast<InvokeOp>(use.getOwner());
        if (reader && reader.getPart() != "F" && !reader.getOnce() &&
            !reader.isConditional() && reader.getStage() == gather.getStage() &&
            reader.getSplit()[use.getOperandNumber()] < 0)
          remake(gather, reader, use.getOperandNumber(), *made);
      }
    }
  }
};
} // namespace
