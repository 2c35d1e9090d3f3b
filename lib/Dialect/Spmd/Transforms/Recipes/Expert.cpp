//===- Expert.cpp - Expert parallelism ------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Lepikhin et al., "GShard" (arXiv 2006.16668), section 3: samples are split,
/// and so are the experts. What samples send to experts, and get back, crosses
/// over by an all-to-all, as do its gradients:
/// ```
/// [samples/n, experts, places, features]      dispatched where samples are
/// [samples, experts/n, places, features]      computed where experts are
/// ```
/// Experts are what products with weights do side by side, each with weights
/// of its own; how the ops are connected says where tokens enter and leave.
///
//===----------------------------------------------------------------------===//

#include "Annotator.h"
#include "cleave/Dialect/Graph/IR/Entry.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

/// Whether `known` is experts. Heads with weights of their own are not: other
/// products make them.
static bool isExperts(const DimensionClass &known) {
  return !known.wholeIn && !known.samples && !known.stacked.empty() &&
         known.consumers.empty() &&
         llvm::all_of(known.producers, [&](Operation *producer) {
           return llvm::is_contained(known.stacked, producer);
         });
}

namespace {
/// Where values of one function go from samples to experts and back.
class Crossing {
public:
  Crossing(Annotator &annotator, const DimensionClasses &classes,
           const DimensionClass &known, unsigned number, StringRef axis)
      : annotator(annotator), classes(classes), number(number),
        split{annotator.getMesh().find(axis)->name} {
    auto [argument, dim] = known.arguments.front();
    experts = cast<RankedTensorType>(argument.getType()).getDimSize(dim);
  }

  void run(func::FuncOp function) {
    // What enters and leaves, before annotations come between.
    SmallVector<OpResult> entering;
    SmallVector<OpOperand *> leaving;
    for (Operation &op : function.getBody().front().without_terminator()) {
      if (isa<ConstrainOp>(op))
        continue;
      bool before = llvm::any_of(op.getOperands(), [&](Value operand) {
        return expertDim(operand).has_value();
      });
      bool after = llvm::any_of(op.getResults(), [&](Value result) {
        return expertDim(result).has_value();
      });
      if (after && !before)
        for (OpResult result : op.getResults())
          if (expertDim(result) && hasSamples(result))
            entering.push_back(result);
      if (before && !after && !sums(&op))
        for (OpOperand &operand : op.getOpOperands())
          if (expertDim(operand.get()) && hasSamples(operand.get()))
            leaving.push_back(&operand);
    }
    for (OpOperand *operand : leaving) {
      OpBuilder builder(operand->getOwner());
      operand->set(constrain(builder, operand->get(), {}));
    }
    for (OpResult result : entering) {
      OpBuilder builder(result.getOwner());
      builder.setInsertionPointAfter(result.getOwner());
      ConstrainOp there = constrain(builder, result, {split});
      result.replaceAllUsesExcept(there, there);
    }
  }

private:
  /// What `value` was before other recipes annotated it.
  static Value described(Value value) {
    while (auto constrain = value.getDefiningOp<ConstrainOp>())
      value = constrain.getInput();
    return value;
  }

  /// The dimension of `value` that is the experts and nothing else, such as
  /// their places.
  std::optional<unsigned> expertDim(Value value) const {
    value = described(value);
    auto type = cast<RankedTensorType>(value.getType());
    for (int64_t dim = 0; dim < type.getRank(); ++dim)
      if (classes.number(value, dim) == number &&
          type.getDimSize(dim) == experts)
        return dim;
    return std::nullopt;
  }

  bool hasSamples(Value value) const {
    value = described(value);
    auto type = cast<RankedTensorType>(value.getType());
    for (int64_t dim = 0; dim < type.getRank(); ++dim)
      if (type.getDimSize(dim) > 1 && classes.of(value, dim).samples)
        return true;
    return false;
  }

  /// Whether `op` adds up what experts give: a sum of sums will do.
  static bool sums(Operation *op) {
    auto costed = dyn_cast<graph::CostOpInterface>(op);
    auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(op);
    if (!costed || !ruled ||
        costed.getCost().work == graph::WorkClass::Gather)
      return false;
    graph::ShardingRule rule = ruled.getShardingRule();
    return llvm::any_of(rule.factors, [](const graph::Factor &factor) {
      return factor.kind == graph::FactorKind::Reduction;
    });
  }

  ConstrainOp constrain(OpBuilder &builder, Value value, AxisList axes) {
    Sharding sharding = Sharding::replicated(
        cast<RankedTensorType>(value.getType()).getRank(), /*open=*/true);
    unsigned dim = *expertDim(value);
    sharding.dims[dim] = axes;
    sharding.open[dim] = false;
    return annotator.constrain(builder, value, sharding);
  }

  Annotator &annotator;
  const DimensionClasses &classes;
  unsigned number;
  AxisRef split;
  int64_t experts;
};
} // namespace

LogicalResult cleave::spmd::applyExpert(Annotator &annotator, StringRef axis) {
  if (failed(applyData(annotator, axis)))
    return failure();
  int64_t parts = annotator.getMesh().size(AxisRef{axis});
  bool found = false;
  for (func::FuncOp function : annotator.entries()) {
    const DimensionClasses &classes = annotator.classesOf(function);
    for (auto [number, known] : llvm::enumerate(classes.all())) {
      if (!isExperts(known))
        continue;
      if (known.divisor % parts != 0)
        return known.stacked.front()->emitOpError("has ")
               << known.divisor << " experts, which the " << parts
               << " positions of axis \"" << axis << "\" do not divide: use "
               << partsThatFit(known.divisor);
      found = true;
      for (auto [argument, dim] : known.arguments)
        annotator.split(argument, dim, axis);
      Crossing(annotator, classes, known, number, axis).run(function);
    }
  }
  if (!found)
    return annotator.getModule().emitError()
           << "expert: no products with weights go side by side, each with "
              "weights of its own, as those of experts do";
  return success();
}
