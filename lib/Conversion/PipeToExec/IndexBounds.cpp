//===- IndexBounds.cpp - Bounds of inputs that are indices ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "IndexBounds.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;
using graph::IndexUse;
using graph::IndexUseOpInterface;

namespace {

/// The bounds that all uses of one value together allow.
struct Bounds {
  int64_t bound = 0;
  std::optional<int64_t> ignored;
  DenseSet<Value> seen;

  void add(const IndexUse &use) {
    if (use.bound <= 0)
      return;
    if (bound == 0)
      ignored = use.ignored;
    else if (ignored != use.ignored)
      ignored.reset();
    bound = bound == 0 ? use.bound : std::min(bound, use.bound);
  }

  void visit(Value value) {
    if (!seen.insert(value).second)
      return;
    for (OpOperand &operand : value.getUses()) {
      Operation *user = operand.getOwner();
      unsigned index = operand.getOperandNumber();
      bool passes = false;
      if (auto use = dyn_cast<IndexUseOpInterface>(user)) {
        add(use.getIndexUse(index));
        passes = use.getIndexUse(index).passes;
      }
      if (passes)
        for (Value result : user->getResults())
          visit(result);
      if (auto invoke = dyn_cast<pipe::InvokeOp>(user))
        if (func::FuncOp part = invoke.getPartFunction();
            part && !part.isExternal() && index < part.getNumArguments())
          visit(part.getArgument(index));
      if (user->hasTrait<OpTrait::IsTerminator>())
        visitCallers(user, index);
    }
  }

  /// A result of a part is a value of the programs that invoke it.
  void visitCallers(Operation *terminator, unsigned index) {
    auto part = dyn_cast<func::FuncOp>(terminator->getParentOp());
    if (!part)
      return;
    part->getParentOfType<ModuleOp>().walk([&](pipe::InvokeOp invoke) {
      if (invoke.getCallee() == part.getName())
        visit(invoke.getResult(index));
    });
  }
};

} // namespace

void cleave::exec::annotateIndexBounds(pipe::ProgramOp program) {
  Builder builder(program.getContext());
  for (BlockArgument argument : program.getBody().getArguments()) {
    auto type = cast<RankedTensorType>(argument.getType());
    if (!type.getElementType().isInteger() ||
        type.getElementType().isInteger(1))
      continue;
    Bounds bounds;
    bounds.visit(argument);
    if (bounds.bound == 0)
      continue;
    unsigned i = argument.getArgNumber();
    program.setArgAttr(i, kUpperBoundAttr,
                       builder.getI64IntegerAttr(bounds.bound));
    if (bounds.ignored)
      program.setArgAttr(i, kIgnoreIndexAttr,
                         builder.getI64IntegerAttr(*bounds.ignored));
  }
}
