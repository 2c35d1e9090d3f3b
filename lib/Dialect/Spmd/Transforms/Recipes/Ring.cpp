//===- Ring.cpp - Context parallelism around a ring -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Liu et al., "Ring Attention" (arXiv 2310.01889): values are split along the
/// sequence; attention sees the keys of one position after the other. What this
/// writes is where its operands lie, and which lowering it has: that one, or the
/// two rings of Li et al. (arXiv 2105.13120).
///
//===----------------------------------------------------------------------===//

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
                return other->emitOpError("has no steps of a ring");
              });
      if (failed(marked))
        return failure();
    }
    return success();
  }

private:
  template <typename Op> LogicalResult markOp(Op op) {
    if (auto other = op->template getAttrOfType<StringAttr>(attribute))
      return op.emitOpError("travels a ring over axis ")
             << other << " already: name one axis";
    if (op.getBias() || op.getMask())
      return op.emitOpError("adds a ")
             << (op.getBias() ? "bias" : "mask")
             << " to its scores, whose columns cannot travel a ring with the "
                "keys: use the recipe 'context' or 'ulysses'";
    for (OpOperand *operand :
         {&op.getQueryMutable(), &op.getKeyMutable(), &op.getValueMutable()}) {
      int64_t places =
          cast<RankedTensorType>(operand->get().getType()).getDimSize(2);
      if (places % parts != 0)
        return op.emitOpError("has a sequence of ")
               << places << " places, which the " << parts
               << " positions of axis \"" << axis
               << "\" do not divide: use " << partsThatFit(places);
      OpBuilder builder(op);
      operand->set(constrain(builder, operand->get()));
    }
    // So are the results of each step: the axis stands alone among them.
    if constexpr (std::is_same_v<Op, graph::AttentionOp>) {
      OpBuilder builder(op.getContext());
      builder.setInsertionPointAfter(op);
      Value output = constrain(builder, op.getOutput());
      op.getOutput().replaceAllUsesExcept(output, output.getDefiningOp());
    }
    op->setAttr(attribute, StringAttr::get(op.getContext(), axis));
    return success();
  }

  /// `value`, of queries or keys, split along the sequence by the axis alone.
  Value constrain(OpBuilder &builder, Value value) {
    Sharding sharding = Sharding::replicated(4, /*open=*/true);
    sharding.dims[2].push_back({axis});
    sharding.open[2] = false;
    return annotator.constrain(builder, value, sharding);
  }

  Annotator &annotator;
  /// The mark.
  StringRef attribute;
  /// The mesh's own text: it outlives the call.
  StringRef axis;
  int64_t parts;
};
} // namespace

static LogicalResult mark(Annotator &annotator, StringRef axis,
                          StringRef recipe, StringRef attribute) {
  bool found = false;
  RingMarker marker(annotator, axis, attribute);
  for (func::FuncOp function : annotator.entries()) {
    // Before annotations come between.
    SequenceClasses sequences =
        sequenceClasses(annotator.classesOf(function), function);
    if (failed(splitInputs(annotator, function, sequences, axis)) ||
        failed(marker.mark(function, found)))
      return failure();
  }
  if (!found)
    return annotator.getModule().emitError()
           << recipe << ": the model has no attention whose keys could travel "
                     "around a ring";
  return success();
}

LogicalResult cleave::spmd::applyRing(Annotator &annotator, StringRef axis) {
  return mark(annotator, axis, "ring", kRingAttr);
}

LogicalResult cleave::spmd::applyTwoRings(Annotator &annotator,
                                          StringRef axis) {
  return mark(annotator, axis, "two-ring", kTwoRingAttr);
}
