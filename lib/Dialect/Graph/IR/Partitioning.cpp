//===- Partitioning.cpp - Ops on one shard --------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave::graph;

using ShardOffset =
    function_ref<Value(RankedTensorType, const FactorMapping &)>;

/// The op `op` with other operands and result types.
template <typename Op>
static Op cloneWith(Op op, OpBuilder &builder, ValueRange operands,
                    TypeRange resultTypes) {
  Operation *clone = builder.clone(*op.getOperation());
  clone->setOperands(operands);
  for (auto [result, type] : llvm::zip(clone->getResults(), resultTypes))
    result.setType(type);
  return cast<Op>(clone);
}

Operation *ConstantOp::buildLocal(OpBuilder &builder, ValueRange,
                                  TypeRange resultTypes, ShardOffset) {
  auto type = cast<RankedTensorType>(resultTypes.front());
  auto value = dyn_cast<DenseElementsAttr>(getValue());
  if (type == getType())
    return builder.clone(*getOperation());
  if (!value || !value.isSplat())
    return nullptr;
  return ConstantOp::create(builder, getLoc(), value.resizeSplat(type));
}

Operation *SliceOp::buildLocal(OpBuilder &builder, ValueRange operands,
                               TypeRange resultTypes, ShardOffset) {
  // Only dimensions taken whole are split: their local size is the operand's.
  auto clone = cloneWith(*this, builder, operands, resultTypes);
  clone.setSizes(cast<RankedTensorType>(resultTypes.front()).getShape());
  return clone;
}

/// What is not split is told from what is by its size: that of the whole, which
/// may be smaller than a padded one.
static bool hidesSplit(RankedTensorType type, RankedTensorType local,
                       ArrayRef<int64_t> global) {
  return llvm::any_of(llvm::seq<int64_t>(0, type.getRank()), [&](int64_t dim) {
    return type.getDimSize(dim) != local.getDimSize(dim) &&
           local.getDimSize(dim) == global[dim];
  });
}

Operation *DropoutOp::buildLocal(OpBuilder &builder, ValueRange operands,
                                 TypeRange resultTypes,
                                 ShardOffset shardOffset) {
  auto type = cast<RankedTensorType>(getInput().getType());
  Value origin = shardOffset(type, getShardingRule().operands[0]);
  auto local = cast<RankedTensorType>(resultTypes.front());
  ArrayRef<int64_t> global = getGlobalShape().value_or(type.getShape());
  if (origin && (getOrigin() || hidesSplit(type, local, global)))
    return nullptr;
  auto clone = cloneWith(*this, builder, operands, resultTypes);
  if (origin)
    clone.getOriginMutable().assign(origin);
  if (local != type)
    clone.setGlobalShape(global);
  return clone;
}

/// Attention and its gradients draw by the place of a score in the global
/// [batch, heads, queries, keys].
template <typename Op>
static Operation *
buildLocalAttention(Op op, OpBuilder &builder, ValueRange operands,
                    TypeRange resultTypes, ShardOffset shardOffset) {
  auto query = cast<RankedTensorType>(op.getQuery().getType());
  auto key = cast<RankedTensorType>(op.getKey().getType());
  SmallVector<int64_t> shape{query.getDimSize(0), query.getDimSize(1),
                             query.getDimSize(2), key.getDimSize(2)};
  Value origin;
  if (!op.getDropout().isZero()) {
    ShardingRule rule = op.getShardingRule();
    // The query is the first operand of the op that has its dimensions.
    FactorMapping mapping =
        rule.operands[op.getODSOperandIndexAndLength(
                            std::is_same_v<Op, AttentionOp> ? 0 : 1)
                          .first];
    mapping[3] = {};
    origin = shardOffset(RankedTensorType::get(shape, query.getElementType()),
                         mapping);
    if (origin && op.getOrigin())
      return nullptr; // A shard of a shard.
  }
  auto clone = cloneWith(op, builder, operands, resultTypes);
  if (origin)
    clone.getOriginMutable().assign(origin);
  if (origin || (!op.getDropout().isZero() &&
                 TypeRange(operands) != TypeRange(op->getOperandTypes())))
    clone.setGlobalShape(op.getGlobalShape().value_or(shape));
  return clone;
}

Operation *AttentionOp::buildLocal(OpBuilder &builder, ValueRange operands,
                                   TypeRange resultTypes,
                                   ShardOffset shardOffset) {
  return buildLocalAttention(*this, builder, operands, resultTypes,
                             shardOffset);
}

Operation *AttentionGradOp::buildLocal(OpBuilder &builder, ValueRange operands,
                                       TypeRange resultTypes,
                                       ShardOffset shardOffset) {
  return buildLocalAttention(*this, builder, operands, resultTypes,
                             shardOffset);
}

Operation *AttentionBiasGradOp::buildLocal(OpBuilder &builder,
                                           ValueRange operands,
                                           TypeRange resultTypes,
                                           ShardOffset shardOffset) {
  return buildLocalAttention(*this, builder, operands, resultTypes,
                             shardOffset);
}
