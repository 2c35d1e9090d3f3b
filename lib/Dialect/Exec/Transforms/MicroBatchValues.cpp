//===- MicroBatchValues.cpp - What is known with the micro-batch ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/ExecInterfaces.h"
#include "cleave/Dialect/Exec/Transforms/Passes.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

namespace {

/// The micro-batch is the coordinate on the sequential axis; there is one
/// position on every other.
struct ShardOffsetModel
    : MicroBatchValueOpInterface::ExternalModel<ShardOffsetModel,
                                                spmd::ShardOffsetOp> {
  DenseElementsAttr getValueAt(Operation *op, int64_t microBatch,
                               int64_t microBatches) const {
    auto offset = cast<spmd::ShardOffsetOp>(op);
    spmd::ShardingAttr attr = offset.getSharding();
    spmd::MeshOp meshOp = spmd::lookupMesh(op, attr.getMesh());
    if (!meshOp)
      return nullptr;
    spmd::Mesh mesh = meshOp.getMesh();
    SmallVector<int64_t> coordinates;
    for (const spmd::MeshAxis &axis : mesh.axes) {
      bool batches = axis.sequential && axis.size == microBatches;
      if (!batches && axis.size != 1)
        return nullptr;
      coordinates.push_back(batches ? microBatch : 0);
    }
    auto global = cast<RankedTensorType>(offset.getGlobal());
    SmallVector<int64_t> first;
    for (auto [dim, size] : llvm::zip_equal(attr.getDims(), global.getShape()))
      first.push_back(mesh.partIndex(dim.axes, coordinates) *
                      (size / mesh.size(dim.axes)));
    return DenseElementsAttr::get(
        cast<RankedTensorType>(offset.getOutput().getType()),
        ArrayRef<int64_t>(first));
  }
};

} // namespace

void cleave::exec::registerMicroBatchValueModels(DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, spmd::SpmdDialect *) {
    spmd::ShardOffsetOp::attachInterface<ShardOffsetModel>(*context);
  });
}
