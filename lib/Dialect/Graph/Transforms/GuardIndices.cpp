//===- GuardIndices.cpp - Range checks of computed indices ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/Messages/SourceLine.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"
#include "mlir/Analysis/DataFlow/IntegerRangeAnalysis.h"
#include "mlir/Analysis/DataFlow/Utils.h"
#include "mlir/Analysis/DataFlowFramework.h"

namespace cleave::graph {
#define GEN_PASS_DEF_GUARDINDICES
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"
} // namespace cleave::graph

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

namespace {
struct GuardIndicesPass
    : cleave::graph::impl::GuardIndicesBase<GuardIndicesPass> {
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
    // One guard is shared by all readers that use a value in the same way.
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

  /// Whether all elements are known to be in range, or are values that are
  /// checked before a step begins.
  bool isSafe(Value value, const IndexUse &use, DataFlowSolver &solver) {
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

  /// A session checks each input and buffer, but not the buffers that a step
  /// writes.
  bool isChecked(BlockArgument argument) {
    auto function = dyn_cast<func::FuncOp>(argument.getOwner()->getParentOp());
    if (!function)
      return false;
    auto role = function.getArgAttrOfType<StringAttr>(argument.getArgNumber(),
                                                      graph::kRoleAttr);
    if (role && role == "buffer")
      return !isWritten(function.getArgAttrOfType<StringAttr>(
          argument.getArgNumber(), graph::kNameAttr));
    return role && role == "input";
  }

  /// Whether an entry writes to the buffer `name`.
  bool isWritten(StringAttr name) {
    for (auto function : getOperation().getOps<func::FuncOp>())
      for (unsigned i = 0; i < function.getNumResults(); ++i)
        if (name && function.getResultAttr(i, graph::kUpdatesAttr) == name)
          return true;
    return false;
  }

  /// Stops the step if an element is out of range, and returns indices that are
  /// in range in any case.
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
