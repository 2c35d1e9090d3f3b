//===- CollectiveIndices.cpp - Collectives of indices --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/IndexUse.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;
using graph::IndexUse;

/// What moves between ranks stays the same indices.
static IndexUse moved() { return {0, std::nullopt, true}; }
static IndexUse indexUse(SliceOp, Value) { return moved(); }
static IndexUse indexUse(AllGatherOp, Value) { return moved(); }
static IndexUse indexUse(AllToAllOp, Value) { return moved(); }
static IndexUse indexUse(PermuteOp, Value) { return moved(); }
static IndexUse indexUse(RotateOp, Value) { return moved(); }
static IndexUse indexUse(BroadcastOp, Value) { return moved(); }
static IndexUse indexUse(BarrierOp op, Value operand) {
  return {0, std::nullopt, operand == op.getInput()};
}

namespace {

template <typename OpTy>
struct IndexModel
    : graph::IndexUseOpInterface::ExternalModel<IndexModel<OpTy>, OpTy> {
  IndexUse getIndexUse(Operation *op, unsigned index) const {
    return indexUse(cast<OpTy>(op), op->getOperand(index));
  }
};

template <typename... OpTys> void attach(MLIRContext *context) {
  (OpTys::template attachInterface<IndexModel<OpTys>>(*context), ...);
}

} // namespace

void cleave::spmd::registerIndexUseModels(DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, SpmdDialect *) {
    attach<SliceOp, AllGatherOp, AllToAllOp, PermuteOp, RotateOp, BroadcastOp,
           BarrierOp>(context);
  });
}
