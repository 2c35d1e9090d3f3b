//===- RecordSaved.cpp - What forward saves, for the report ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "RecordSaved.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/Messages/SourceLine.h"
#include "cleave/Dialect/Graph/IR/TensorBytes.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

void cleave::pipe::recordSaved(ProgramOp program, const Blocks &blocks) {
  Builder b(program.getContext());
  SmallVector<Attribute> items;
  auto add = [&](Operation *op, Location loc, int64_t bytes, int64_t stage,
                 StringRef name) {
    items.push_back(b.getDictionaryAttr(
        {b.getNamedAttr("block",
                        b.getI64IntegerAttr(op ? blocks.blockOf(op) : -1)),
         b.getNamedAttr("bytes", b.getI64IntegerAttr(bytes)),
         b.getNamedAttr("line", b.getStringAttr(sourceLine(loc))),
         b.getNamedAttr("op", b.getStringAttr(name)),
         b.getNamedAttr("stage", b.getI64IntegerAttr(stage))}));
  };
  for (auto invoke : program.getBody().getOps<InvokeOp>()) {
    if (invoke.getPart() != "F")
      continue;
    int64_t stage = invoke.getStage();
    // Masks are drawn again; a framework that stores them needs a byte for
    // each element.
    for (Operation &op : invoke.getPartFunction().front())
      if (isa<graph::RandomOpInterface>(op) &&
          cast<graph::CostOpInterface>(op).getCost().work ==
              graph::WorkClass::ElementWise)
        for (Value result : op.getResults())
          add(&op, op.getLoc(),
              cast<RankedTensorType>(result.getType()).getNumElements(), stage,
              kMaskOp);
    Operation *terminator = invoke.getPartFunction().front().getTerminator();
    for (OpResult result : invoke->getResults()) {
      bool read = llvm::any_of(result.getUsers(), [&](Operation *user) {
        auto reader = dyn_cast<InvokeOp>(user);
        return reader && !reader.getOnce() &&
               reader.getStage() == invoke.getStage();
      });
      unsigned i = result.getResultNumber();
      if (!read || !invoke.isSaved(i))
        continue;
      Value value = terminator->getOperand(i);
      Operation *op = value.getDefiningOp();
      // What is rounded or packed to be saved.
      int64_t bytes = bytesOf(value);
      while (op && op->hasAttr(kNarrowedAttr))
        op = op->getOperand(0).getDefiningOp();
      add(op, value.getLoc(), bytes, stage,
          op ? op->getName().getStringRef() : "input");
    }
  }
  if (!items.empty())
    program->setAttr(kSavedAttr, b.getArrayAttr(items));
}
