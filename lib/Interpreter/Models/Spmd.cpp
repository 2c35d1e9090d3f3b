//===- Spmd.cpp - Collectives ---------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "../Shards.h"
#include "Models.h"
#include <map>

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

static LogicalResult evaluateShardOffset(ShardOffsetOp op, const RefArgs &,
                                         Results results,
                                         ReferenceContext &context) {
  MeshOp mesh = lookupMesh(op, op.getSharding().getMesh());
  if (!mesh)
    return op.emitOpError("has no mesh");
  auto global = cast<RankedTensorType>(op.getGlobal());
  llvm::copy(shardOffsets(mesh.getMesh(), op.getSharding().getSharding(),
                          global.getShape(), context.rank),
             results[0].ints.begin());
  return success();
}

static LogicalResult evaluateSlice(SliceOp op, const RefArgs &args,
                                   Results results,
                                   ReferenceContext &context) {
  MeshOp mesh = lookupMesh(op, op.getSharding().getMesh());
  if (!mesh)
    return op.emitOpError("has no mesh");
  results[0] = cutShard(mesh.getMesh(), op.getSharding().getSharding(),
                        args[0u], context.rank);
  return success();
}

static LogicalResult evaluateConstrain(ConstrainOp, const RefArgs &args,
                                       Results results, ReferenceContext &) {
  results[0] = args[0];
  return success();
}

namespace {
struct AllReduceModel
    : ReferenceCollectiveOpInterface::ExternalModel<AllReduceModel,
                                                    AllReduceOp> {
  LogicalResult evaluateTogether(Operation *operation, ArrayRef<RefArgs> args,
                                 ArrayRef<Results> results,
                                 ReferenceContext &context) const {
    auto op = cast<AllReduceOp>(operation);
    MeshOp meshOp = lookupMesh(op, op.getMeshAttr());
    if (!meshOp)
      return op.emitOpError("has no mesh");
    Mesh mesh = meshOp.getMesh();
    if (mesh.size() != static_cast<int64_t>(args.size()))
      return op.emitOpError("runs on ")
             << args.size() << " ranks, but its mesh has " << mesh.size()
             << " positions";
    // A group: the ranks that differ only in digits of the axes. Moving each
    // of them to part 0 names the group.
    AxisList axes(op.getAxes().getAxes());
    std::map<SmallVector<int64_t, 4>, std::map<int64_t, int64_t>> groups;
    for (int64_t rank = 0; rank < mesh.size(); ++rank) {
      SmallVector<int64_t, 4> coordinates = mesh.coordinates(rank);
      int64_t part = mesh.partIndex(axes, coordinates);
      for (const AxisRef &axis : axes)
        clearDigit(mesh, axis, coordinates);
      groups[coordinates][part] = rank;
    }
    for (auto &[name, members] : groups) {
      SmallVector<const RefTensor *> parts;
      for (auto [part, rank] : members)
        parts.push_back(&args[rank][0u]);
      RefTensor sum = combineParts(parts, op.getKind(), context.precision);
      for (auto [part, rank] : members)
        results[rank][0] = sum;
    }
    return success();
  }

  /// Sets the digit `axis` of the coordinates to 0.
  static void clearDigit(const Mesh &mesh, const AxisRef &axis,
                         SmallVectorImpl<int64_t> &coordinates) {
    for (auto [dim, known] : llvm::enumerate(mesh.axes))
      if (known.name == axis.name) {
        int64_t digits = axis.isWhole() ? known.size : axis.size;
        int64_t below = known.size / (axis.pre * digits);
        int64_t digit = coordinates[dim] / below % digits;
        coordinates[dim] -= digit * below;
      }
  }
};
} // namespace

void cleave::attachSpmdModels(MLIRContext *c) {
  ReferenceModel<ShardOffsetOp, evaluateShardOffset>::attach(c);
  ReferenceModel<SliceOp, evaluateSlice>::attach(c);
  ReferenceModel<ConstrainOp, evaluateConstrain>::attach(c);
  AllReduceOp::attachInterface<AllReduceModel>(*c);
}
