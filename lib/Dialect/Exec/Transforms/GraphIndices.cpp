//===- GraphIndices.cpp - Graph ops that read indices ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/ExecInterfaces.h"
#include "cleave/Dialect/Exec/Transforms/Passes.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

static int64_t sizeOf(Value value, int64_t dim) {
  return cast<RankedTensorType>(value.getType()).getDimSize(dim);
}

static IndexUse indexUse(graph::GatherOp op, Value operand) {
  if (operand == op.getIndices())
    return {sizeOf(op.getInput(), op.getDim()), std::nullopt, false};
  return {};
}

static IndexUse indexUse(graph::ScatterAddOp op, Value operand) {
  if (operand == op.getIndices())
    return {static_cast<int64_t>(op.getSize()), std::nullopt, false};
  return {};
}

/// Targets name columns of the logits.
template <typename OpTy> static IndexUse targetUse(OpTy op, Value operand,
                                                   int64_t columns) {
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

/// The border is a value of its own, chosen by whoever wrote the program.
static IndexUse indexUse(graph::PadOp, Value) { return {0, std::nullopt, true}; }

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
    attach<graph::GatherOp, graph::ScatterAddOp, graph::CrossEntropyOp,
           graph::CrossEntropyGradOp, graph::HeadLossOp, graph::PadOp,
           graph::SelectOp>(context);
  });
}
