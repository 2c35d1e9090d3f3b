//===- MicroBatchValues.cpp - Values that depend on the micro-batch alone -===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Conversion/Passes.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

namespace {

/// The micro-batch is the coordinate on the sequential axis and becomes part of
/// the base; the rank's coordinates on the other axes have factors.
struct ShardOffsetModel
    : MicroBatchValueOpInterface::ExternalModel<ShardOffsetModel,
                                                spmd::ShardOffsetOp> {
  Attribute getValueAt(Operation *op, int64_t microBatch,
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
      if (axis.sequential && !batches && axis.size != 1)
        return nullptr;
      coordinates.push_back(batches ? microBatch : 0);
    }
    auto global = cast<RankedTensorType>(offset.getGlobal());
    SmallVector<int64_t> base, factors;
    spmd::Sharding devices = spmd::Sharding::replicated(global.getRank());
    for (auto [i, dim] : llvm::enumerate(attr.getDims())) {
      int64_t unit = global.getDimSize(i) / mesh.size(dim.axes);
      base.push_back(mesh.partIndex(dim.axes, coordinates) * unit);
      // From minor to major: the weight of a digit is the product of the sizes
      // of the digits after it.
      SmallVector<std::pair<spmd::AxisRef, int64_t>> weighted;
      for (const spmd::AxisRef &axis : llvm::reverse(dim.axes)) {
        if (!mesh.isSequential(axis) && mesh.size(axis) > 1)
          weighted.push_back({axis, unit});
        unit *= mesh.size(axis);
      }
      for (auto [axis, factor] : llvm::reverse(weighted)) {
        devices.dims[i].push_back(axis);
        factors.push_back(factor);
      }
    }
    if (factors.empty())
      return DenseElementsAttr::get(
          cast<RankedTensorType>(offset.getOutput().getType()),
          ArrayRef<int64_t>(base));
    return DeviceValuesAttr::get(
        op->getContext(), base,
        spmd::ShardingAttr::get(attr.getMesh(), devices), factors);
  }
};

} // namespace

void cleave::exec::registerMicroBatchValueModels(DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, spmd::SpmdDialect *) {
    spmd::ShardOffsetOp::attachInterface<ShardOffsetModel>(*context);
  });
}
