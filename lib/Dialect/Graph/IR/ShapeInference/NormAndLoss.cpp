//===- NormAndLoss.cpp - Types of norms, softmax and losses ---------------===//
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

/// The type of one statistic per row of `type`: at least f32.
static RankedTensorType rowType(RankedTensorType type) {
  Type element = type.getElementType();
  if (!element.isF64())
    element = Float32Type::get(element.getContext());
  return RankedTensorType::get(type.getShape().drop_back(), element);
}

/// Checks that `input` has rows and that `vectors` (null allowed) match them,
/// in its own type or that of its statistics.
static LogicalResult checkRows(std::optional<Location> loc, Value input,
                               ArrayRef<Value> vectors) {
  RankedTensorType type = denseTypeOf(input);
  if (type.getRank() < 1 || type.getShape().back() == 0)
    return emitOptionalError(loc, "input ", type,
                             " needs a last dimension that is not empty");
  for (Value vector : vectors)
    if (vector &&
        (denseTypeOf(vector).getShape() != type.getShape().take_back(1) ||
         !llvm::is_contained(
             {type.getElementType(), rowType(type).getElementType()},
             denseTypeOf(vector).getElementType())))
      return emitOptionalError(loc, "weight or bias ", vector.getType(),
                               " does not match the last dimension of ", type);
  return success();
}

/// Checks that `gradient` has the type of `input` and `statistics` are per row.
static LogicalResult checkRowGradient(std::optional<Location> loc,
                                      Value gradient, Value input,
                                      ArrayRef<Value> statistics) {
  if (denseTypeOf(gradient) != denseTypeOf(input))
    return emitOptionalError(loc, "gradient ", gradient.getType(),
                             " and input ", input.getType(),
                             " have different types");
  for (Value value : statistics)
    if (denseTypeOf(value) != rowType(denseTypeOf(input)))
      return emitOptionalError(loc, "statistic ", value.getType(), " must be ",
                               rowType(denseTypeOf(input)));
  return success();
}

/// The type of a sum over rows: at least f32.
static Type vectorType(Value input) {
  RankedTensorType type = denseTypeOf(input);
  return RankedTensorType::get(type.getShape().take_back(1),
                               rowType(type).getElementType());
}

/// The type of a gradient of a norm, `result`, whose operands are checked.
template <typename Adaptor>
static LogicalResult inferRowGradient(std::optional<Location> loc,
                                      Adaptor adaptor, ArrayRef<Value> vectors,
                                      ArrayRef<Value> statistics, Type result,
                                      SmallVectorImpl<Type> &results) {
  if (failed(checkRows(loc, adaptor.getInput(), vectors)) ||
      failed(checkRowGradient(loc, adaptor.getGradient(), adaptor.getInput(),
                              statistics)))
    return failure();
  results.push_back(result);
  return success();
}

LogicalResult LayerNormOp::inferReturnTypes(MLIRContext *,
                                            std::optional<Location> loc,
                                            Adaptor adaptor,
                                            SmallVectorImpl<Type> &results) {
  if (failed(checkRows(loc, adaptor.getInput(),
                       {adaptor.getWeight(), adaptor.getBias()})))
    return failure();
  RankedTensorType row = rowType(denseTypeOf(adaptor.getInput()));
  results.append({denseTypeOf(adaptor.getInput()), row, row});
  return success();
}

LogicalResult
LayerNormGradOp::inferReturnTypes(MLIRContext *, std::optional<Location> loc,
                                  Adaptor adaptor,
                                  SmallVectorImpl<Type> &results) {
  return inferRowGradient(loc, adaptor, {adaptor.getWeight()},
                          {adaptor.getMean(), adaptor.getRstd()},
                          denseTypeOf(adaptor.getInput()), results);
}

LogicalResult LayerNormWeightGradOp::inferReturnTypes(
    MLIRContext *, std::optional<Location> loc, Adaptor adaptor,
    SmallVectorImpl<Type> &results) {
  return inferRowGradient(loc, adaptor, {},
                          {adaptor.getMean(), adaptor.getRstd()},
                          vectorType(adaptor.getInput()), results);
}

LogicalResult RmsNormOp::inferReturnTypes(MLIRContext *,
                                          std::optional<Location> loc,
                                          Adaptor adaptor,
                                          SmallVectorImpl<Type> &results) {
  if (failed(checkRows(loc, adaptor.getInput(), {adaptor.getWeight()})))
    return failure();
  results.append({denseTypeOf(adaptor.getInput()),
                  rowType(denseTypeOf(adaptor.getInput()))});
  return success();
}

LogicalResult RmsNormGradOp::inferReturnTypes(MLIRContext *,
                                              std::optional<Location> loc,
                                              Adaptor adaptor,
                                              SmallVectorImpl<Type> &results) {
  return inferRowGradient(loc, adaptor, {adaptor.getWeight()},
                          {adaptor.getRstd()}, denseTypeOf(adaptor.getInput()),
                          results);
}

LogicalResult RmsNormWeightGradOp::inferReturnTypes(
    MLIRContext *, std::optional<Location> loc, Adaptor adaptor,
    SmallVectorImpl<Type> &results) {
  return inferRowGradient(loc, adaptor, {}, {adaptor.getRstd()},
                          vectorType(adaptor.getInput()), results);
}

LogicalResult SoftmaxOp::inferReturnTypes(MLIRContext *,
                                          std::optional<Location> loc,
                                          Adaptor adaptor,
                                          SmallVectorImpl<Type> &results) {
  if (failed(checkRows(loc, adaptor.getInput(), {})))
    return failure();
  results.push_back(denseTypeOf(adaptor.getInput()));
  return success();
}

LogicalResult SoftmaxGradOp::inferReturnTypes(MLIRContext *,
                                              std::optional<Location> loc,
                                              Adaptor adaptor,
                                              SmallVectorImpl<Type> &results) {
  if (failed(checkRows(loc, adaptor.getOutput(), {})) ||
      failed(checkRowGradient(loc, adaptor.getGradient(), adaptor.getOutput(),
                              {})))
    return failure();
  results.push_back(denseTypeOf(adaptor.getOutput()));
  return success();
}

/// Checks that `targets` name a class of each row of shape `[rows...,
/// classes]`.
static LogicalResult checkTargets(std::optional<Location> loc,
                                  ArrayRef<int64_t> rows, Value targets) {
  if (denseTypeOf(targets).getShape() == rows)
    return success();
  return emitOptionalError(loc, "targets ", targets.getType(),
                           " must have one value for each row, [", rows, "]");
}

LogicalResult CrossEntropyOp::inferReturnTypes(MLIRContext *,
                                               std::optional<Location> loc,
                                               Adaptor adaptor,
                                               SmallVectorImpl<Type> &results) {
  RankedTensorType logits = denseTypeOf(adaptor.getLogits());
  if (failed(checkRows(loc, adaptor.getLogits(), {})) ||
      failed(checkTargets(loc, logits.getShape().drop_back(),
                          adaptor.getTargets())))
    return failure();
  results.append({rowType(logits), rowType(logits)});
  return success();
}

LogicalResult
CrossEntropyGradOp::inferReturnTypes(MLIRContext *, std::optional<Location> loc,
                                     Adaptor adaptor,
                                     SmallVectorImpl<Type> &results) {
  RankedTensorType logits = denseTypeOf(adaptor.getLogits());
  if (failed(checkRows(loc, adaptor.getLogits(), {})) ||
      failed(checkTargets(loc, logits.getShape().drop_back(),
                          adaptor.getTargets())))
    return failure();
  for (Value value : {adaptor.getGradient(), adaptor.getLse()})
    if (denseTypeOf(value) != rowType(logits))
      return emitOptionalError(loc, "gradient and log-sum-exp must be ",
                               rowType(logits));
  results.push_back(logits);
  return success();
}

LogicalResult HeadLossOp::inferReturnTypes(MLIRContext *,
                                           std::optional<Location> loc,
                                           Adaptor adaptor,
                                           SmallVectorImpl<Type> &results) {
  RankedTensorType logits;
  Type sums = rowType(denseTypeOf(adaptor.getInput())).getElementType();
  if (failed(inferLinear(loc, adaptor.getInput(), adaptor.getWeight(),
                         adaptor.getBias(), sums, logits)) ||
      failed(checkTargets(loc, logits.getShape().drop_back(),
                          adaptor.getTargets())))
    return failure();
  results.push_back(rowType(logits));
  if (!adaptor.getGradient())
    return success();
  if (denseTypeOf(adaptor.getGradient()) != rowType(logits))
    return emitOptionalError(loc, "gradient ", adaptor.getGradient().getType(),
                             " must be ", rowType(logits));
  results.append({denseTypeOf(adaptor.getInput()),
                  denseTypeOf(adaptor.getWeight()).clone(sums)});
  if (adaptor.getBias())
    results.push_back(denseTypeOf(adaptor.getBias()));
  return success();
}

LogicalResult RopeOp::inferReturnTypes(MLIRContext *,
                                       std::optional<Location> loc,
                                       Adaptor adaptor,
                                       SmallVectorImpl<Type> &results) {
  RankedTensorType input = denseTypeOf(adaptor.getInput());
  if (input.getRank() < 1 || input.getShape().back() % 2 != 0)
    return emitOptionalError(loc, "input ", input,
                             " needs a last dimension of even size");
  Type element = input.getElementType();
  bool isNarrow = element.isBF16() || element.isF16();
  for (Value table : {adaptor.getCos(), adaptor.getSin()}) {
    auto shape =
        broadcastShapes({denseTypeOf(table).getShape(), input.getShape()});
    Type own = denseTypeOf(table).getElementType();
    if (!shape || ArrayRef(*shape) != input.getShape() ||
        (own != element && !(isNarrow && own.isF32())))
      return emitOptionalError(loc, "table ", table.getType(),
                               " does not broadcast to ", input);
  }
  results.push_back(input);
  return success();
}
