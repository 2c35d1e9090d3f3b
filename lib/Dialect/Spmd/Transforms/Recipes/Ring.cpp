//===- Ring.cpp - Context parallelism around a ring -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The recipe "ring": Liu et al., "Ring Attention" (arXiv 2310.01889). Values
/// are sharded along the sequence, and attention processes the keys of one
/// position after the other. The recipe annotates the shardings of attention
/// operands and marks the attention with its lowering. The recipe "two-ring"
/// marks the lowering to the two rings of Li et al. (arXiv 2105.13120) instead.
///
//===----------------------------------------------------------------------===//

#include "../Decompose/ScoreExtras.h"
#include "Sequence.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {
/// Marks the attentions of one function.
class RingMarker {
public:
  RingMarker(Annotator &annotator, StringRef axis, StringRef attribute)
      : annotator(annotator), attribute(attribute),
        axis(annotator.getMesh().find(axis)->name),
        parts(annotator.getMesh().size(AxisRef{axis})) {}

  LogicalResult mark(func::FuncOp function, bool &found) {
    SmallVector<Operation *> ops;
    for (Operation &op : function.getBody().front().without_terminator())
      if (isAttention(&op))
        ops.push_back(&op);
    found |= !ops.empty();
    for (Operation *op : ops) {
      LogicalResult marked =
          llvm::TypeSwitch<Operation *, LogicalResult>(op)
              .Case<graph::AttentionOp, graph::AttentionGradOp,
                    graph::AttentionBiasGradOp>(
                  [&](auto typed) { return markOp(typed); })
              .Default([](Operation *other) {
                return other->emitOpError(
                    "has no decomposition into ring steps");
              });
      if (failed(marked))
        return failure();
    }
    return success();
  }

private:
  template <typename Op> LogicalResult markOp(Op op) {
    if (auto other = op->template getAttrOfType<StringAttr>(attribute))
      return op.emitOpError("has a ring over axis ")
             << other << " already: name one axis";
    if (!fits(op)) {
      if constexpr (std::is_same_v<Op, graph::AttentionOp>)
        op.emitRemark("sequences of ")
            << placesOf(op.getQuery()) << " and " << placesOf(op.getKey())
            << " positions are not divisible by the " << parts
            << " positions of axis \"" << axis
            << "\": keys and values are gathered over it instead of being "
               "passed around";
      return splitQueries(annotator, op, axis);
    }
    // All gradients of one attention read the same annotated values.
    Value gradient;
    if constexpr (!std::is_same_v<Op, graph::AttentionOp>)
      gradient = op.getGradient();
    auto annotate = [&](OpOperand &operand, auto constrain) {
      Value given = operand.get(), once;
      Value &annotated = gradient ? shared[{given, gradient}] : once;
      OpBuilder builder(op);
      if (!annotated)
        annotated = constrain(builder, given);
      operand.set(annotated);
    };
    for (OpOperand *operand :
         {&op.getQueryMutable(), &op.getKeyMutable(), &op.getValueMutable()}) {
      annotate(*operand, [&](OpBuilder &builder, Value value) {
        return constrain(builder, value);
      });
    }
    for (MutableOperandRange extra : {MutableOperandRange(op.getBiasMutable()),
                                      MutableOperandRange(op.getMaskMutable())})
      for (OpOperand &operand : extra)
        annotate(operand, [&](OpBuilder &builder, Value value) {
          return constrainExtra(builder, value);
        });
    // The results of each step are sharded over this axis alone, as well.
    if constexpr (std::is_same_v<Op, graph::AttentionOp>) {
      OpBuilder builder(op.getContext());
      builder.setInsertionPointAfter(op);
      Value output = constrain(builder, op.getOutput());
      op.getOutput().replaceAllUsesExcept(output, output.getDefiningOp());
    }
    if constexpr (std::is_same_v<Op, graph::AttentionBiasGradOp>) {
      OpBuilder builder(op.getContext());
      builder.setInsertionPointAfter(op);
      Value gradient = constrainExtra(builder, op.getBiasGradient());
      op.getBiasGradient().replaceAllUsesExcept(gradient,
                                                gradient.getDefiningOp());
    }
    op->setAttr(attribute, StringAttr::get(op.getContext(), axis));
    return success();
  }

  static int64_t placesOf(Value value) {
    return cast<RankedTensorType>(value.getType()).getDimSize(2);
  }
  /// Whether each position of the axis has as many queries and keys.
  template <typename Op> bool fits(Op op) const {
    return placesOf(op.getQuery()) % parts == 0 &&
           placesOf(op.getKey()) % parts == 0;
  }

  /// Returns `value`, of shape [samples, heads, sequence, features], annotated
  /// as sharded along the sequence over the axis alone.
  Value constrain(OpBuilder &builder, Value value) {
    Sharding sharding = Sharding::replicated(4, /*open=*/true);
    sharding.dims[2].push_back({axis});
    sharding.open[2] = false;
    return annotator.constrain(builder, value, sharding);
  }

  /// Returns `value`, a mask or bias, annotated as sharded along its keys, or,
  /// if it has queries, along these alone.
  Value constrainExtra(OpBuilder &builder, Value value) {
    int64_t rank = cast<RankedTensorType>(value.getType()).getRank();
    Sharding sharding = Sharding::replicated(rank, /*open=*/true);
    switch (scoreExtra(value)) {
    case ScoreExtra::None:
    case ScoreExtra::Same:
      return value;
    case ScoreExtra::Pairs:
      sharding.dims[rank - 2].push_back({axis});
      sharding.open[rank - 2] = sharding.open[rank - 1] = false;
      break;
    case ScoreExtra::Keys:
      sharding.dims[rank - 1].push_back({axis});
      sharding.open[rank - 1] = false;
    }
    return annotator.constrain(builder, value, sharding);
  }

  Annotator &annotator;
  /// The attribute that marks the lowering.
  StringRef attribute;
  /// The name as stored in the mesh, which outlives the call.
  StringRef axis;
  int64_t parts;
  /// The annotated operands of gradients, by these and by the gradient of the
  /// attention's result.
  llvm::DenseMap<std::pair<Value, Value>, Value> shared;
};
} // namespace

static LogicalResult mark(Annotator &annotator, StringRef axis,
                          StringRef recipe, StringRef attribute) {
  bool found = false;
  RingMarker marker(annotator, axis, attribute);
  for (func::FuncOp function : annotator.entries()) {
    // Computed before annotations are inserted.
    const DimensionClasses &classes = annotator.classesOf(function);
    ComposedAttention composed(classes, function);
    SequenceClasses sequences = sequenceClasses(classes, function, composed);
    if (failed(splitInputs(annotator, function, sequences, axis)) ||
        failed(marker.mark(function, found)))
      return failure();
    composed.splitQueries(annotator, axis);
    composed.remarkGathered(recipe, axis);
    found |= !composed.empty();
  }
  if (!found)
    return refuseWithoutAttention(annotator, recipe,
                                  "the model has no attention");
  return success();
}

LogicalResult cleave::spmd::applyRing(Annotator &annotator, StringRef axis) {
  return mark(annotator, axis, "ring", kRingAttr);
}

LogicalResult cleave::spmd::applyTwoRings(Annotator &annotator,
                                          StringRef axis) {
  return mark(annotator, axis, "two-ring", kTwoRingAttr);
}
