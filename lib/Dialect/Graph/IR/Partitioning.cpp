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

/// The dimension that indices name, of `size` elements along `factors`, may be
/// split; null for a shard of a shard.
template <typename Op>
static Op buildLocalIndexed(Op op, OpBuilder &builder, ValueRange operands,
                            TypeRange resultTypes, ShardOffset shardOffset,
                            int64_t size, ArrayRef<int64_t> factors) {
  Value origin = shardOffset(RankedTensorType::get(size, builder.getI64Type()),
                             {SmallVector<int64_t, 2>(factors)});
  if (origin && op.getOrigin())
    return nullptr;
  auto clone = cloneWith(op, builder, operands, resultTypes);
  if (origin) {
    clone.getOriginMutable().assign(origin);
    clone.setGlobalSize(size);
  }
  return clone;
}

Operation *GatherOp::buildLocal(OpBuilder &builder, ValueRange operands,
                                TypeRange resultTypes,
                                ShardOffset shardOffset) {
  return buildLocalIndexed(*this, builder, operands, resultTypes, shardOffset,
                           getInput().getType().getDimSize(getDim()),
                           getShardingRule().operands[0][getDim()]);
}

Operation *ScatterAddOp::buildLocal(OpBuilder &builder, ValueRange operands,
                                    TypeRange resultTypes,
                                    ShardOffset shardOffset) {
  auto clone =
      buildLocalIndexed(*this, builder, operands, resultTypes, shardOffset,
                        getSize(), getShardingRule().results[0][getDim()]);
  if (clone)
    clone.setSize(clone.getType().getDimSize(getDim()));
  return clone;
}

Operation *OneHotOp::buildLocal(OpBuilder &builder, ValueRange operands,
                                TypeRange resultTypes,
                                ShardOffset shardOffset) {
  auto clone =
      buildLocalIndexed(*this, builder, operands, resultTypes, shardOffset,
                        getSize(), getShardingRule().results[0].back());
  if (clone)
    clone.setSize(clone.getType().getShape().back());
  return clone;
}

Operation *DropoutOp::buildLocal(OpBuilder &builder, ValueRange operands,
                                 TypeRange resultTypes,
                                 ShardOffset shardOffset) {
  auto type = cast<RankedTensorType>(getInput().getType());
  Value origin = shardOffset(type, getShardingRule().operands[0]);
  if (origin && getOrigin())
    return nullptr; // A shard of a shard.
  auto clone = cloneWith(*this, builder, operands, resultTypes);
  if (origin) {
    clone.getOriginMutable().assign(origin);
    clone.setGlobalShape(type.getShape());
  }
  return clone;
}

Operation *UniformOp::buildLocal(OpBuilder &builder, ValueRange operands,
                                 TypeRange resultTypes,
                                 ShardOffset shardOffset) {
  Value origin = shardOffset(getType(), getShardingRule().results[0]);
  if (origin && getOrigin())
    return nullptr; // A shard of a shard.
  auto clone = cloneWith(*this, builder, operands, resultTypes);
  if (origin) {
    clone.getOriginMutable().assign(origin);
    clone.setGlobalShape(getType().getShape());
  }
  return clone;
}

/// Attention and its gradients draw, and hide, by the place of a score in the
/// global [batch, heads, queries, keys].
template <typename Op>
static Operation *
buildLocalAttention(Op op, OpBuilder &builder, ValueRange operands,
                    TypeRange resultTypes, ShardOffset shardOffset) {
  auto query = cast<RankedTensorType>(op.getQuery().getType());
  auto key = cast<RankedTensorType>(op.getKey().getType());
  SmallVector<int64_t> shape{query.getDimSize(0), query.getDimSize(1),
                             query.getDimSize(2), key.getDimSize(2)};
  Value origin;
  bool hides = op.getCausal() || op.getWindow();
  if (hides || !op.getDropout().isZero()) {
    ShardingRule rule = op.getShardingRule();
    // The query is the first operand of the op that has its dimensions.
    FactorMapping mapping =
        rule.operands[op.getODSOperandIndexAndLength(
                            std::is_same_v<Op, AttentionOp> ? 0 : 1)
                          .first];
    mapping[3] = {};
    // What only hides is the same in all batches and heads.
    if (op.getDropout().isZero())
      mapping[0] = mapping[1] = {};
    origin = shardOffset(RankedTensorType::get(shape, query.getElementType()),
                         mapping);
    if (origin && op.getOrigin())
      return nullptr; // A shard of a shard.
  }
  auto clone = cloneWith(op, builder, operands, resultTypes);
  if (origin) {
    clone.getOriginMutable().assign(origin);
    clone.setGlobalShape(shape);
  }
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
