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

/// The op that makes result `index` of `gather`, if it is a smaller copy of an
/// argument of the program: one element-wise op on it.
static Operation *findCopy(InvokeOp gather, unsigned index) {
  Value value =
      gather.getPartFunction().front().getTerminator()->getOperand(index);
  Operation *op = value.getDefiningOp();
  auto costed = dyn_cast_or_null<graph::CostOpInterface>(op);
  if (!costed || !isPure(op) || op->getNumOperands() != 1 ||
      costed.getCost().work != graph::WorkClass::ElementWise)
    return nullptr;
  auto argument = dyn_cast<BlockArgument>(op->getOperand(0));
  if (!argument || bytesOf(value) >= bytesOf(argument) ||
      !isa<BlockArgument>(gather.getInputs()[argument.getArgNumber()]))
    return nullptr;
  return op;
}

/// Lets `reader` make the copy that its operand `index` is, by `copy` from
/// `original`, before it first reads it. Its operand is then `original`, unless
/// that is one already.
static void remake(InvokeOp reader, unsigned index, Operation *copy,
                   Value original) {
  func::FuncOp function = reader.getPartFunction();
  Block &body = function.front();
  BlockArgument argument = body.getArgument(index);
  BlockArgument known;
  for (auto [i, input] : llvm::enumerate(reader.getInputs()))
    if (input == original && reader.getSplit()[i] < 0)
      known = body.getArgument(i);
  Operation *first = nullptr;
  for (Operation *user : argument.getUsers()) {
    user = body.findAncestorOpInBlock(*user);
    if (!first || user->isBeforeInBlock(first))
      first = user;
  }
  if (first) {
    OpBuilder builder(first);
    Operation *clone = builder.clone(*copy);
    argument.replaceAllUsesWith(clone->getResult(0));
    clone->setOperand(0, known ? known : argument);
  }
  if (known) {
    body.eraseArgument(index);
    SmallVector<int64_t> split(reader.getSplit());
    split.erase(split.begin() + index);
    reader->eraseOperand(index);
    reader.setSplit(split);
  } else {
    argument.setType(original.getType());
    reader.setOperand(index, original);
  }
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
      for (auto gather : program.getBody().getOps<InvokeOp>())
        if (gather.getPart() == "G")
          remakeCopiesOf(gather);
    }
  }

private:
  /// Backward parts of the same stage no longer read what `gather` copies.
  static void remakeCopiesOf(InvokeOp gather) {
    for (OpResult result : gather->getResults()) {
      Operation *copy = findCopy(gather, result.getResultNumber());
      if (!copy)
        continue;
      Value original =
          gather.getInputs()[cast<BlockArgument>(copy->getOperand(0))
                                 .getArgNumber()];
      for (OpOperand &use : llvm::make_early_inc_range(result.getUses())) {
        auto reader = dyn_cast<InvokeOp>(use.getOwner());
        if (reader && reader.getPart() != "F" && !reader.getOnce() &&
            !reader.isConditional() && reader.getStage() == gather.getStage() &&
            reader.getSplit()[use.getOperandNumber()] < 0)
          remake(reader, use.getOperandNumber(), copy, original);
      }
    }
  }
};
} // namespace
