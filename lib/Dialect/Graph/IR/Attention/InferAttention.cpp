//===- InferAttention.cpp - Types of attention ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Einsum.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"

using namespace mlir;
using namespace cleave::graph;

/// The type of statistics kept beside a result of `element` type: at least
/// f32.
static Type statisticsType(Type element) {
  return element.isF64() ? element : Float32Type::get(element.getContext());
}

template <typename Adaptor>
static LogicalResult checkSegments(std::optional<Location> loc,
                                   Adaptor adaptor) {
  ArrayRef<int64_t> q = denseTypeOf(adaptor.getQuery()).getShape();
  ArrayRef<int64_t> k = denseTypeOf(adaptor.getKey()).getShape();
  Value segments = adaptor.getSegments(), keys = adaptor.getKeySegments();
  if (!segments)
    return keys ? emitOptionalError(loc, "key_segments need segments")
                : success();
  if ((!keys && q[2] != k[2]) ||
      denseTypeOf(segments).getShape() != ArrayRef({q[0], q[2]}))
    return emitOptionalError(loc, "segments ", segments.getType(),
                             " must be [batch, positions], with as many "
                             "queries as keys");
  if (keys && (denseTypeOf(keys).getShape() != ArrayRef({k[0], k[2]}) ||
               denseTypeOf(keys).getElementType() !=
                   denseTypeOf(segments).getElementType()))
    return emitOptionalError(loc, "key_segments ", keys.getType(),
                             " must be [batch, keys] of the type of segments");
  return success();
}

/// Checks the blocks, and the pieces whose positions are given.
template <typename Adaptor>
static LogicalResult checkBlocks(std::optional<Location> loc, Adaptor adaptor) {
  int64_t queries = denseTypeOf(adaptor.getQuery()).getDimSize(2);
  int64_t keys = denseTypeOf(adaptor.getKey()).getDimSize(2);
  int64_t blocks = adaptor.getBlocks();
  if (static_cast<int64_t>(adaptor.getStep()) < 0)
    return emitOptionalError(loc, "step must not be negative");
  if (blocks < 1 || queries % blocks != 0 || keys % blocks != 0)
    return emitOptionalError(loc, queries, " queries and ", keys,
                             " keys are not divisible into ", blocks,
                             " blocks");
  if (blocks > 1 && adaptor.getSegments() && !adaptor.getKeySegments())
    return emitOptionalError(loc, "blocks take segments with key_segments "
                                  "alone");
  for (auto [starts, size] :
       {std::pair<Value, int64_t>(adaptor.getQueryStarts(), queries),
        {adaptor.getKeyStarts(), keys}}) {
    if (!starts)
      continue;
    int64_t pieces = denseTypeOf(starts).getDimSize(0);
    if (pieces == 0 || size % pieces != 0 || pieces % blocks != 0)
      return emitOptionalError(loc, pieces, " starts do not divide ", size,
                               " positions in ", blocks, " blocks");
  }
  return success();
}

/// With a bias the log-sum-exp is two numbers.
template <typename Adaptor> static RankedTensorType lseType(Adaptor adaptor) {
  RankedTensorType q = denseTypeOf(adaptor.getQuery());
  SmallVector<int64_t> shape(q.getShape().drop_back());
  if (adaptor.getBias())
    shape.push_back(2);
  return RankedTensorType::get(shape, statisticsType(q.getElementType()));
}

/// Checks the operands that attention and its gradients share.
template <typename Adaptor>
static LogicalResult checkAttention(std::optional<Location> loc,
                                    Adaptor adaptor) {
  RankedTensorType q = denseTypeOf(adaptor.getQuery());
  RankedTensorType k = denseTypeOf(adaptor.getKey());
  RankedTensorType v = denseTypeOf(adaptor.getValue());
  bool ranks = q.getRank() == 4 && k.getRank() == 4 && v.getRank() == 4;
  if (!ranks || q.getDimSize(0) != k.getDimSize(0) ||
      k.getShape().take_front(3) != v.getShape().take_front(3) ||
      q.getDimSize(3) != k.getDimSize(3) || k.getDimSize(1) == 0 ||
      q.getDimSize(1) % k.getDimSize(1) != 0 ||
      q.getElementType() != k.getElementType() ||
      q.getElementType() != v.getElementType())
    return emitOptionalError(loc, "query ", q, ", key ", k, " and value ", v,
                             " need shapes [b, a, q, d], [b, g, k, d] and "
                             "[b, g, k, e] with a a multiple of g");
  if (failed(checkSegments(loc, adaptor)) || failed(checkBlocks(loc, adaptor)))
    return failure();
  for (Value extra : {Value(adaptor.getBias()), Value(adaptor.getMask())}) {
    if (!extra)
      continue;
    // Pairs are those of a query and the keys of its block.
    ArrayRef<int64_t> own = denseTypeOf(extra).getShape();
    bool pairs = own.size() > 1 && own[own.size() - 2] != 1;
    int64_t keys = k.getDimSize(2) / (pairs ? adaptor.getBlocks() : 1);
    SmallVector<int64_t> scores{q.getDimSize(0), q.getDimSize(1),
                                q.getDimSize(2), keys};
    auto shape = broadcastShapes({own, scores});
    if (!shape || *shape != scores)
      return emitOptionalError(loc, "bias or mask ", extra.getType(),
                               " does not broadcast to the scores");
  }
  double p = adaptor.getDropout().convertToDouble();
  if (!(p >= 0.0 && p < 1.0))
    return emitOptionalError(loc, "dropout must be at least 0 and below 1");
  if (p > 0 &&
      (!adaptor.getRng() || denseTypeOf(adaptor.getRng()).getDimSize(0) != 2))
    return emitOptionalError(
        loc, "dropout needs an rng operand of two values, seed and step");
  if (adaptor.getOrigin() &&
      (!adaptor.getGlobalShape() || adaptor.getGlobalShape()->size() != 4 ||
       denseTypeOf(adaptor.getOrigin()).getDimSize(0) != 4))
    return emitOptionalError(loc,
                             "origin and global_shape need four values each");
  return success();
}

LogicalResult AttentionOp::inferReturnTypes(MLIRContext *,
                                            std::optional<Location> loc,
                                            Adaptor adaptor,
                                            SmallVectorImpl<Type> &results) {
  if (failed(checkAttention(loc, adaptor)))
    return failure();
  RankedTensorType q = denseTypeOf(adaptor.getQuery());
  Type element;
  if (failed(inferSumType(loc, q.getElementType(), adaptor.getResultElement(),
                          element)))
    return failure();
  SmallVector<int64_t> shape(q.getShape());
  results.push_back(
      RankedTensorType::get({shape[0], shape[1], shape[2],
                             denseTypeOf(adaptor.getValue()).getDimSize(3)},
                            element));
  results.push_back(lseType(adaptor));
  return success();
}

LogicalResult AttentionOp::verify() {
  if (static_cast<bool>(getOnto()) != static_cast<bool>(getOntoLse()) ||
      (getOnto() && (getOnto().getType() != getOutput().getType() ||
                     getOntoLse().getType() != getLse().getType())))
    return emitOpError("onto must have the types of the results");
  if (getWindow() && static_cast<int64_t>(*getWindow()) < 1)
    return emitOpError("window must be positive");
  return success();
}

/// Checks the log-sum-exp that a gradient reads.
template <typename Adaptor>
static LogicalResult checkLse(std::optional<Location> loc, Adaptor adaptor) {
  RankedTensorType lse = denseTypeOf(adaptor.getLse());
  if (lse.getShape() != lseType(adaptor).getShape())
    return emitOptionalError(loc, "log-sum-exp ", lse, " must be ",
                             lseType(adaptor));
  return success();
}

LogicalResult
AttentionGradOp::inferReturnTypes(MLIRContext *, std::optional<Location> loc,
                                  Adaptor adaptor,
                                  SmallVectorImpl<Type> &results) {
  if (failed(checkAttention(loc, adaptor)) || failed(checkLse(loc, adaptor)))
    return failure();
  if (denseTypeOf(adaptor.getGradient()) != denseTypeOf(adaptor.getOutput()))
    return emitOptionalError(loc, "gradient ", adaptor.getGradient().getType(),
                             " and output ", adaptor.getOutput().getType(),
                             " have different types");
  Type element;
  if (failed(inferSumType(loc, denseTypeOf(adaptor.getQuery()).getElementType(),
                          adaptor.getResultElement(), element)))
    return failure();
  for (Value value : {adaptor.getQuery(), adaptor.getKey(), adaptor.getValue()})
    results.push_back(denseTypeOf(value).clone(element));
  return success();
}

LogicalResult AttentionBiasGradOp::inferReturnTypes(
    MLIRContext *, std::optional<Location> loc, Adaptor adaptor,
    SmallVectorImpl<Type> &results) {
  if (failed(checkAttention(loc, adaptor)) || failed(checkLse(loc, adaptor)))
    return failure();
  results.push_back(denseTypeOf(adaptor.getBias()));
  return success();
}
