//===- Partitioning.cpp - Ops on one shard --------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/DependsOnIndex.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave::graph;

using ShardOffset =
    function_ref<Value(RankedTensorType, const FactorMapping &)>;

bool cleave::graph::dependsOnIndex(Operation *op, int64_t factor) {
  auto local = dyn_cast<PartitionableOpInterface>(op);
  if (!local)
    return false;
  Block scratch;
  OpBuilder builder(op->getContext());
  builder.setInsertionPointToEnd(&scratch);
  bool asked = false;
  local.buildLocal(builder, op->getOperands(), op->getResultTypes(),
                   [&](RankedTensorType, const FactorMapping &mapping) {
                     for (ArrayRef<int64_t> dim : mapping)
                       asked |= llvm::is_contained(dim, factor);
                     return Value();
                   });
  return asked;
}

/// Builds `op` with other operands and result types.
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
  // Only replicated dimensions: their local size is that of the operand.
  auto clone = cloneWith(*this, builder, operands, resultTypes);
  clone.setSizes(cast<RankedTensorType>(resultTypes.front()).getShape());
  return clone;
}

/// The dimension that indices refer to, of `size` elements along `factors`, may
/// be sharded or have the size `newSize`; null for a shard of a shard.
template <typename Op>
static Op buildLocalIndexed(Op op, OpBuilder &builder, ValueRange operands,
                            TypeRange resultTypes, ShardOffset shardOffset,
                            int64_t size, int64_t newSize,
                            ArrayRef<int64_t> factors) {
  Value origin = shardOffset(RankedTensorType::get(size, builder.getI64Type()),
                             {SmallVector<int64_t, 2>(factors)});
  if (origin && op.getOrigin())
    return nullptr;
  auto clone = cloneWith(op, builder, operands, resultTypes);
  if (origin)
    clone.getOriginMutable().assign(origin);
  if (newSize != size)
    clone.setGlobalSize(op.getGlobalSize().value_or(size));
  return clone;
}

static int64_t dimSize(Type type, int64_t dim) {
  return cast<RankedTensorType>(type).getDimSize(dim);
}

Operation *GatherOp::buildLocal(OpBuilder &builder, ValueRange operands,
                                TypeRange resultTypes,
                                ShardOffset shardOffset) {
  return buildLocalIndexed(*this, builder, operands, resultTypes, shardOffset,
                           getInput().getType().getDimSize(getDim()),
                           dimSize(operands[0].getType(), getDim()),
                           getShardingRule().operands[0][getDim()]);
}

Operation *ScatterAddOp::buildLocal(OpBuilder &builder, ValueRange operands,
                                    TypeRange resultTypes,
                                    ShardOffset shardOffset) {
  int64_t size = dimSize(resultTypes.front(), getDim());
  auto clone = buildLocalIndexed(*this, builder, operands, resultTypes,
                                 shardOffset, getSize(), size,
                                 getShardingRule().results[0][getDim()]);
  if (clone)
    clone.setSize(size);
  return clone;
}

Operation *GroupedLinearOp::buildLocal(OpBuilder &builder, ValueRange operands,
                                       TypeRange resultTypes,
                                       ShardOffset shardOffset) {
  return buildLocalIndexed(*this, builder, operands, resultTypes, shardOffset,
                           getWeight().getType().getDimSize(0),
                           dimSize(operands[1].getType(), 0),
                           getShardingRule().operands[1][0]);
}

Operation *GroupedLinearWeightGradOp::buildLocal(OpBuilder &builder,
                                                 ValueRange operands,
                                                 TypeRange resultTypes,
                                                 ShardOffset shardOffset) {
  int64_t size = dimSize(resultTypes.front(), 0);
  auto clone =
      buildLocalIndexed(*this, builder, operands, resultTypes, shardOffset,
                        getSize(), size, getShardingRule().results[0][0]);
  if (clone)
    clone.setSize(size);
  return clone;
}

Operation *OneHotOp::buildLocal(OpBuilder &builder, ValueRange operands,
                                TypeRange resultTypes,
                                ShardOffset shardOffset) {
  int64_t size = cast<RankedTensorType>(resultTypes.front()).getShape().back();
  auto clone =
      buildLocalIndexed(*this, builder, operands, resultTypes, shardOffset,
                        getSize(), size, getShardingRule().results[0].back());
  if (clone)
    clone.setSize(size);
  return clone;
}

/// A dimension is sharded if its size differs from the global one. The global
/// size may be smaller than the padded one.
static bool hidesSplit(RankedTensorType type, RankedTensorType local,
                       ArrayRef<int64_t> global) {
  return llvm::any_of(llvm::seq<int64_t>(0, type.getRank()), [&](int64_t dim) {
    return type.getDimSize(dim) != local.getDimSize(dim) &&
           local.getDimSize(dim) == global[dim];
  });
}

/// An op that draws a number for each element of its result uses the element's
/// global position: that of a shard, from `places` along `mapping`, and, if it
/// is `placed` by starts, those of its pieces.
template <typename Op>
static Operation *buildLocalDraws(Op op, OpBuilder &builder,
                                  ValueRange operands, TypeRange resultTypes,
                                  ShardOffset shardOffset,
                                  const FactorMapping &mapping,
                                  ArrayRef<int64_t> places, bool placed) {
  auto type = cast<RankedTensorType>(op.getType());
  Value origin = shardOffset(
      RankedTensorType::get(places, type.getElementType()), mapping);
  auto local = cast<RankedTensorType>(resultTypes.front());
  ArrayRef<int64_t> global = op.getGlobalShape().value_or(type.getShape());
  // A shard of a shard, or one that could not be told from the global tensor.
  if (origin && (op.getOrigin() || hidesSplit(type, local, global)))
    return nullptr;
  auto clone = cloneWith(op, builder, operands, resultTypes);
  if (origin)
    clone.getOriginMutable().assign(origin);
  if (origin || placed || local != type)
    clone.setGlobalShape(global);
  return clone;
}

/// If pieces have starts, only positions within a piece count: removes the
/// factors of pieces from those of a dimension, and divides `size` by their
/// number.
static void withinPieces(Value starts, const ShardingRule &rule,
                         SmallVectorImpl<int64_t> &factors, int64_t &size) {
  if (!starts)
    return;
  int64_t pieces = cast<RankedTensorType>(starts.getType()).getDimSize(0);
  size /= pieces;
  int64_t *first = factors.begin();
  for (int64_t left = pieces; left > 1 && first != factors.end(); ++first)
    left /= rule.factors[*first].size;
  factors.erase(factors.begin(), first);
}

Operation *DropoutOp::buildLocal(OpBuilder &builder, ValueRange operands,
                                 TypeRange resultTypes,
                                 ShardOffset shardOffset) {
  FactorMapping mapping = getShardingRule().results[0];
  SmallVector<int64_t> places(getType().getShape());
  if (getStarts())
    withinPieces(getStarts(), getShardingRule(), mapping[*getStartsDim()],
                 places[*getStartsDim()]);
  return buildLocalDraws(*this, builder, operands, resultTypes, shardOffset,
                         mapping, places, /*placed=*/bool(getStarts()));
}

Operation *UniformOp::buildLocal(OpBuilder &builder, ValueRange operands,
                                 TypeRange resultTypes,
                                 ShardOffset shardOffset) {
  return buildLocalDraws(*this, builder, operands, resultTypes, shardOffset,
                         getShardingRule().results[0], getType().getShape(),
                         /*placed=*/false);
}

/// Attention and its gradients draw and mask by the position of a score in the
/// global [batch, heads, queries, keys].
template <typename Op>
static Operation *
buildLocalAttention(Op op, OpBuilder &builder, ValueRange operands,
                    TypeRange resultTypes, ShardOffset shardOffset) {
  auto query = cast<RankedTensorType>(op.getQuery().getType());
  auto key = cast<RankedTensorType>(op.getKey().getType());
  SmallVector<int64_t> shape{query.getDimSize(0), query.getDimSize(1),
                             query.getDimSize(2), key.getDimSize(2)};
  SmallVector<int64_t> places(shape);
  Value origin;
  bool draws = !op.getDropout().isZero();
  bool placed = draws || op.getCausal() || op.getWindow();
  if (placed) {
    ShardingRule rule = op.getShardingRule();
    // The query is the first operand that has the op's dimensions; the key
    // follows it.
    unsigned first = std::is_same_v<Op, AttentionOp> ? 0 : 1;
    FactorMapping mapping = rule.operands[first];
    mapping[3] = rule.operands[first + 1][2];
    withinPieces(op.getQueryStarts(), rule, mapping[2], places[2]);
    withinPieces(op.getKeyStarts(), rule, mapping[3], places[3]);
    // Masks are the same in all batches and heads.
    if (!draws)
      mapping[0] = mapping[1] = {};
    origin = shardOffset(RankedTensorType::get(places, query.getElementType()),
                         mapping);
    if (origin && op.getOrigin())
      return nullptr; // A shard of a shard.
  }
  auto clone = cloneWith(op, builder, operands, resultTypes);
  // Keys are sharded by blocks only.
  auto sequence = [](Value value) {
    return cast<RankedTensorType>(value.getType()).getDimSize(2);
  };
  int64_t keys = sequence(clone.getKey());
  if (shape[3] > 0)
    clone.setBlocks(op.getBlocks() * keys / shape[3]);
  if (origin)
    clone.getOriginMutable().assign(origin);
  bool starts = op.getQueryStarts() || op.getKeyStarts();
  bool resized = sequence(clone.getQuery()) != shape[2] || keys != shape[3] ||
                 (draws && clone.getQuery().getType() != query);
  if (placed && (origin || starts || resized) && !op.getGlobalShape())
    clone.setGlobalShape(shape);
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

//===----------------------------------------------------------------------===//
// Elements in another order
//===----------------------------------------------------------------------===//

using Starts = function_ref<Value(Value, unsigned)>;

bool DropoutOp::setStarts(Starts starts) {
  Value table;
  int64_t ordered = 0;
  for (int64_t dim = 0, rank = getInput().getType().getRank(); dim < rank;
       ++dim)
    if (Value given = starts(getInput(), dim)) {
      if (table || getStarts() || getOrigin())
        return false;
      table = given;
      ordered = dim;
    }
  if (!table)
    return true;
  getStartsMutable().assign(table);
  setStartsDim(ordered);
  return true;
}

/// Bias, mask and segments have the order of queries and keys.
template <typename Op> static bool setAttentionStarts(Op op, Starts starts) {
  Value queries = starts(op.getQuery(), 2), keys = starts(op.getKey(), 2);
  if (op.getOrigin() || op.getQueryStarts() || op.getKeyStarts())
    return !queries && !keys;
  auto follows = [&](Value value, unsigned dim, Value other) {
    return starts(value, dim) == other;
  };
  // Segments in the order of queries cannot be those of keys in another order.
  if (op.getSegments() &&
      (!follows(op.getSegments(), 1, queries) ||
       !(op.getKeySegments() ? follows(op.getKeySegments(), 1, keys)
                             : queries == keys)))
    return false;
  for (Value extra : {Value(op.getBias()), Value(op.getMask())}) {
    if (!extra)
      continue;
    auto shape = cast<RankedTensorType>(extra.getType()).getShape();
    int64_t rank = shape.size();
    for (int64_t dim = std::max<int64_t>(rank - 2, 0); dim < rank; ++dim)
      if (shape[dim] != 1 &&
          !follows(extra, dim, dim == rank - 1 ? keys : queries))
        return false;
  }
  if (queries)
    op.getQueryStartsMutable().assign(queries);
  if (keys)
    op.getKeyStartsMutable().assign(keys);
  return true;
}

bool AttentionOp::setStarts(Starts starts) {
  return setAttentionStarts(*this, starts);
}
bool AttentionGradOp::setStarts(Starts starts) {
  return setAttentionStarts(*this, starts);
}
bool AttentionBiasGradOp::setStarts(Starts starts) {
  return setAttentionStarts(*this, starts);
}
