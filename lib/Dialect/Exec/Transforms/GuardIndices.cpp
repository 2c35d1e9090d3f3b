//===- GuardIndices.cpp - Indices that are computed -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/ExecInterfaces.h"
#include "cleave/Dialect/Exec/Transforms/Passes.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/SourceLine.h"
#include "mlir/Analysis/DataFlow/IntegerRangeAnalysis.h"
#include "mlir/Analysis/DataFlow/Utils.h"
#include "mlir/Analysis/DataFlowFramework.h"

namespace cleave::exec {
#define GEN_PASS_DEF_GUARDINDICES
#include "cleave/Dialect/Exec/Transforms/Passes.h.inc"
} // namespace cleave::exec

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

namespace {
struct GuardIndicesPass
    : cleave::exec::impl::GuardIndicesBase<GuardIndicesPass> {
  void runOnOperation() override {
    DataFlowSolver solver;
    dataflow::loadBaselineAnalyses(solver);
    solver.load<dataflow::IntegerRangeAnalysis>();
    if (failed(solver.initializeAndRun(getOperation())))
      return signalPassFailure();
    struct Wanted {
      OpOperand *operand;
      IndexUse use;
    };
    SmallVector<Wanted> work;
    getOperation().walk([&](IndexUseOpInterface op) {
      for (OpOperand &operand : op->getOpOperands())
        if (IndexUse use = op.getIndexUse(operand.getOperandNumber());
            use.bound > 0 && !isSafe(operand.get(), use, solver))
          work.push_back({&operand, use});
    });
    // One guard for all that read the same in the same way.
    std::map<std::tuple<void *, int64_t, std::optional<int64_t>>, Value> made;
    for (const Wanted &own : work) {
      Value index = own.operand->get();
      Value &guarded =
          made[{index.getAsOpaquePointer(), own.use.bound, own.use.ignored}];
      if (!guarded)
        guarded = guard(index, own.use, own.operand->getOwner()->getLoc());
      own.operand->set(guarded);
    }
  }

private:
  static bool allows(const IndexUse &use, int64_t value) {
    return (value >= 0 && value < use.bound) || use.ignored == value;
  }

  /// Whether all elements are known to be allowed, or come from where they are
  /// checked before a step begins.
  static bool isSafe(Value value, const IndexUse &use, DataFlowSolver &solver) {
    if (auto *found =
            solver.lookupState<dataflow::IntegerValueRangeLattice>(value);
        found && !found->getValue().isUninitialized()) {
      const ConstantIntRanges &range = found->getValue().getValue();
      if (range.smin().sge(0) && range.smax().slt(use.bound))
        return true;
      if (std::optional<APInt> constant = range.getConstantValue();
          constant && allows(use, constant->getSExtValue()))
        return true;
    }
    if (auto argument = dyn_cast<BlockArgument>(value))
      return isChecked(argument);
    auto op = value.getDefiningOp<IndexUseOpInterface>();
    if (!op)
      return false;
    bool passes = false;
    for (OpOperand &operand : op->getOpOperands()) {
      IndexUse own = op.getIndexUse(operand.getOperandNumber());
      if (!own.passes)
        continue;
      passes = true;
      if ((own.added && !allows(use, *own.added)) ||
          !isSafe(operand.get(), use, solver))
        return false;
    }
    return passes;
  }

  /// A session looks at each value that it is given.
  static bool isChecked(BlockArgument argument) {
    auto function = dyn_cast<func::FuncOp>(argument.getOwner()->getParentOp());
    if (!function)
      return false;
    auto role = function.getArgAttrOfType<StringAttr>(argument.getArgNumber(),
                                                      graph::kRoleAttr);
    return role && (role == "input" || role == "buffer");
  }

  /// Stops the step where an element is not allowed, and gives what can be
  /// read whatever it is.
  static Value guard(Value index, const IndexUse &use, Location loc) {
    OpBuilder builder(index.getContext());
    builder.setInsertionPointAfterValue(index);
    graph::Formula f{builder, loc};
    auto scalar = [&](int64_t value) { return f.scalar(index, value); };
    Value allowed = graph::AndOp::create(
        builder, loc, f.compare(graph::Predicate::ge, index, scalar(0)),
        f.compare(graph::Predicate::lt, index, scalar(use.bound)));
    std::string text = sourceLine(loc);
    text += (text.empty() ? "an index is outside of [0, "
                          : ": an index is outside of [0, ") +
            std::to_string(use.bound) + ")";
    if (use.ignored) {
      allowed = graph::OrOp::create(
          builder, loc, allowed,
          f.compare(graph::Predicate::eq, index, scalar(*use.ignored)));
      text +=
          " and is not " + std::to_string(*use.ignored) + ", which is left out";
    }
    Value wrong = f.cast(graph::NotOp::create(builder, loc, allowed),
                         builder.getI64Type());
    auto dims = llvm::to_vector(
        llvm::seq<int64_t>(0, graph::tensorTypeOf(index).getRank()));
    wrong = dims.empty() ? wrong : f.sum(wrong, dims);
    graph::CheckOp::create(
        builder, loc,
        f.compare(graph::Predicate::eq, wrong, f.scalar(wrong, 0)), text);
    return f.select(allowed, index, scalar(use.ignored.value_or(0)));
  }
};
} // namespace
