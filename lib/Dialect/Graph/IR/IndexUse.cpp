//===- IndexUse.cpp - Graph ops that read indices -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/IndexUse.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

static int64_t sizeOf(Value value, int64_t dim) {
  return cast<RankedTensorType>(value.getType()).getDimSize(dim);
}

/// Values gathered from a tensor of indices, for example from a shard of it,
/// are indices too.
static IndexUse indexUse(GatherOp op, Value operand) {
  if (operand == op.getIndices())
    return {static_cast<int64_t>(op.getGlobalSize().value_or(
                sizeOf(op.getInput(), op.getDim()))),
            std::nullopt, false};
  return {0, std::nullopt, true};
}

static IndexUse indexUse(ScatterAddOp op, Value operand) {
  if (operand == op.getIndices())
    return {static_cast<int64_t>(op.getGlobalSize().value_or(op.getSize())),
            std::nullopt, false};
  return {};
}

static IndexUse indexUse(GroupedLinearOp op, Value operand) {
  if (operand == op.getGroups())
    return {static_cast<int64_t>(
                op.getGlobalSize().value_or(sizeOf(op.getWeight(), 0))),
            std::nullopt, false};
  return {};
}

static IndexUse indexUse(GroupedLinearWeightGradOp op, Value operand) {
  if (operand == op.getGroups())
    return {static_cast<int64_t>(op.getGlobalSize().value_or(op.getSize())),
            std::nullopt, false};
  return {};
}

static IndexUse indexUse(OneHotOp op, Value operand) {
  if (operand != op.getIndices())
    return {};
  std::optional<int64_t> ignored;
  if (op.getIgnoreIndex())
    ignored = static_cast<int64_t>(*op.getIgnoreIndex());
  return {static_cast<int64_t>(op.getGlobalSize().value_or(op.getSize())),
          ignored, false};
}

/// Targets name columns of the logits.
template <typename OpTy>
static IndexUse targetUse(OpTy op, Value operand, int64_t columns) {
  if (operand == op.getTargets())
    return {columns, static_cast<int64_t>(op.getIgnoreIndex()), false};
  return {};
}

static IndexUse indexUse(CrossEntropyOp op, Value operand) {
  Value logits = op.getLogits();
  return targetUse(op, operand,
                   cast<RankedTensorType>(logits.getType()).getShape().back());
}

static IndexUse indexUse(CrossEntropyGradOp op, Value operand) {
  Value logits = op.getLogits();
  return targetUse(op, operand,
                   cast<RankedTensorType>(logits.getType()).getShape().back());
}

static IndexUse indexUse(HeadLossOp op, Value operand) {
  return targetUse(op, operand, sizeOf(op.getWeight(), 0));
}

/// Layout ops and collectives keep the indices.
static IndexUse moved() { return {0, std::nullopt, true}; }
static IndexUse indexUse(ReshapeOp, Value) { return moved(); }
static IndexUse indexUse(TransposeOp, Value) { return moved(); }
static IndexUse indexUse(BroadcastOp, Value) { return moved(); }
static IndexUse indexUse(SliceOp, Value) { return moved(); }
static IndexUse indexUse(ConcatOp, Value) { return moved(); }

/// The value of the padding is not an index.
static IndexUse indexUse(PadOp op, Value) {
  IndexUse use = moved();
  use.added = static_cast<int64_t>(op.getValue().convertToDouble());
  return use;
}

/// The value that replaces padding is not an input either.
static IndexUse indexUse(SelectOp op, Value operand) {
  bool passes = op->hasAttr(kPaddingAttr) && operand == op.getOnTrue();
  return {0, std::nullopt, passes};
}

namespace {

template <typename OpTy>
struct IndexModel : IndexUseOpInterface::ExternalModel<IndexModel<OpTy>, OpTy> {
  IndexUse getIndexUse(Operation *op, unsigned index) const {
    return indexUse(cast<OpTy>(op), op->getOperand(index));
  }
};

template <typename... OpTys> void attach(MLIRContext *context) {
  (OpTys::template attachInterface<IndexModel<OpTys>>(*context), ...);
}

} // namespace

void cleave::graph::registerIndexUseModels(DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, GraphDialect *) {
    attach<GatherOp, ScatterAddOp, GroupedLinearOp, GroupedLinearWeightGradOp,
           OneHotOp, CrossEntropyOp, CrossEntropyGradOp, HeadLossOp, ReshapeOp,
           TransposeOp, BroadcastOp, SliceOp, ConcatOp, PadOp, SelectOp>(
        context);
  });
}
