//===- GraphIndices.cpp - Graph ops that read indices ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/ExecInterfaces.h"
#include "cleave/Dialect/Exec/Transforms/Passes.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

static int64_t sizeOf(Value value, int64_t dim) {
  return cast<RankedTensorType>(value.getType()).getDimSize(dim);
}

/// What is gathered from a tensor of indices, as a shard of it is, are indices
/// too.
static IndexUse indexUse(graph::GatherOp op, Value operand) {
  if (operand == op.getIndices())
    return {static_cast<int64_t>(op.getGlobalSize().value_or(
                sizeOf(op.getInput(), op.getDim()))),
            std::nullopt, false};
  return {0, std::nullopt, true};
}

static IndexUse indexUse(graph::ScatterAddOp op, Value operand) {
  if (operand == op.getIndices())
    return {static_cast<int64_t>(op.getGlobalSize().value_or(op.getSize())),
            std::nullopt, false};
  return {};
}

static IndexUse indexUse(graph::OneHotOp op, Value operand) {
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

static IndexUse indexUse(graph::CrossEntropyOp op, Value operand) {
  Value logits = op.getLogits();
  return targetUse(op, operand,
                   cast<RankedTensorType>(logits.getType()).getShape().back());
}

static IndexUse indexUse(graph::CrossEntropyGradOp op, Value operand) {
  Value logits = op.getLogits();
  return targetUse(op, operand,
                   cast<RankedTensorType>(logits.getType()).getShape().back());
}

static IndexUse indexUse(graph::HeadLossOp op, Value operand) {
  return targetUse(op, operand, sizeOf(op.getWeight(), 0));
}

/// What moves, on a device or between devices, stays the same indices.
static IndexUse moved() { return {0, std::nullopt, true}; }
static IndexUse indexUse(graph::ReshapeOp, Value) { return moved(); }
static IndexUse indexUse(graph::TransposeOp, Value) { return moved(); }
static IndexUse indexUse(graph::BroadcastOp, Value) { return moved(); }
static IndexUse indexUse(graph::SliceOp, Value) { return moved(); }
static IndexUse indexUse(graph::ConcatOp, Value) { return moved(); }

/// The border is a value of its own.
static IndexUse indexUse(graph::PadOp op, Value) {
  IndexUse use = moved();
  use.added = static_cast<int64_t>(op.getValue().convertToDouble());
  return use;
}

static IndexUse indexUse(spmd::SliceOp, Value) { return moved(); }
static IndexUse indexUse(spmd::AllGatherOp, Value) { return moved(); }
static IndexUse indexUse(spmd::AllToAllOp, Value) { return moved(); }
static IndexUse indexUse(spmd::PermuteOp, Value) { return moved(); }
static IndexUse indexUse(spmd::RotateOp, Value) { return moved(); }
static IndexUse indexUse(spmd::BroadcastOp, Value) { return moved(); }
static IndexUse indexUse(spmd::BarrierOp op, Value operand) {
  return {0, std::nullopt, operand == op.getInput()};
}

/// Nor is what stands in the place of padding given by anybody.
static IndexUse indexUse(graph::SelectOp op, Value operand) {
  bool passes = op->hasAttr(graph::kPaddingAttr) && operand == op.getOnTrue();
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

void cleave::exec::registerGraphIndexModels(DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, graph::GraphDialect *) {
    attach<graph::GatherOp, graph::ScatterAddOp, graph::OneHotOp,
           graph::CrossEntropyOp, graph::CrossEntropyGradOp, graph::HeadLossOp,
           graph::ReshapeOp, graph::TransposeOp, graph::BroadcastOp,
           graph::SliceOp, graph::ConcatOp, graph::PadOp, graph::SelectOp>(
        context);
  });
  registry.addExtension(+[](MLIRContext *context, spmd::SpmdDialect *) {
    attach<spmd::SliceOp, spmd::AllGatherOp, spmd::AllToAllOp, spmd::PermuteOp,
           spmd::RotateOp, spmd::BroadcastOp, spmd::BarrierOp>(context);
  });
}
