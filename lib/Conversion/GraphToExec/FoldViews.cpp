//===- FoldViews.cpp - Layout ops as views --------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Conversion/Passes.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Exec/IR/Views.h"

namespace cleave::exec {
#define GEN_PASS_DEF_FOLDVIEWS
#include "cleave/Conversion/Passes.h.inc"
} // namespace cleave::exec

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

namespace {

struct FoldViews : exec::impl::FoldViewsBase<FoldViews> {
  void runOnOperation() override {
    if (getOperation().isExternal())
      return;
    for (Operation &op : llvm::make_early_inc_range(getOperation().getOps())) {
      if (auto view = dyn_cast<ViewLikeOpInterface>(op))
        foldView(view);
      else if (auto join = dyn_cast<JoinLikeOpInterface>(op))
        foldJoin(join);
    }
    materialiseResults();
  }

  void foldView(ViewLikeOpInterface op) {
    std::optional<Strided> layout = op.getViewLayout();
    if (!layout)
      return;
    OpBuilder builder(op);
    Value input = op->getOperand(0);
    auto type = cast<RankedTensorType>(op->getResult(0).getType());
    Value view = viewOf(builder, op.getLoc(), input, type, *layout);
    if (!view) {
      Value dense = CopyOp::create(
          builder, op.getLoc(), denseType(tensorTypeOf(input)), input, Value());
      view = viewOf(builder, op.getLoc(), dense, type, *layout);
    }
    copyForCommands(builder, op->getResult(0), view);
    op->getResult(0).replaceAllUsesWith(view);
    op->erase();
  }

  /// Collectives are commands already: those that cannot read `view` in the
  /// place of `old` read a copy.
  static void copyForCommands(OpBuilder &builder, Value old, Value view) {
    Value copy;
    for (OpOperand &use : llvm::make_early_inc_range(old.getUses())) {
      auto command = dyn_cast<CommandOpInterface>(use.getOwner());
      if (!command ||
          command.canReadOperand(use.getOperandNumber(), tensorTypeOf(view)))
        continue;
      if (!copy)
        copy = CopyOp::create(builder, view.getLoc(), old.getType(), view,
                              Value());
      use.set(copy);
    }
  }

  void foldJoin(JoinLikeOpInterface op) {
    OpBuilder builder(op);
    SmallVector<Value> slices;
    for (auto [operand, layout] :
         llvm::zip_equal(op->getOperands(), op.getOperandLayouts()))
      slices.push_back(CopyOp::create(builder, op.getLoc(),
                                      withLayout(tensorTypeOf(operand), layout),
                                      operand, Value()));
    op->getResult(0).replaceAllUsesWith(JoinOp::create(
        builder, op.getLoc(), op->getResult(0).getType(), slices));
    op->erase();
  }

  /// Results of a part have the declared layout and their own memory: not that
  /// of an argument or of another result, and not the beginning of a larger
  /// buffer, for which the caller has no room.
  void materialiseResults() {
    Operation *terminator = getOperation().front().getTerminator();
    OpBuilder builder(terminator);
    SmallPtrSet<Value, 16> roots;
    for (OpOperand &operand : terminator->getOpOperands()) {
      Value value = operand.get(), root = rootOf(value);
      bool own = !isa<BlockArgument>(root) && roots.insert(root).second;
      Type declared =
          getOperation().getResultTypes()[operand.getOperandNumber()];
      bool fits = extentBytes(tensorTypeOf(root)) ==
                  extentBytes(cast<RankedTensorType>(declared));
      if (!own || !fits || value.getType() != declared)
        operand.set(CopyOp::create(builder, terminator->getLoc(), declared,
                                   value, Value()));
    }
  }
};

} // namespace
