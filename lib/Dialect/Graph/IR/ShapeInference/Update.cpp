//===- Update.cpp - Types of the ops of a training step -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"
#include "cleave/Support/CheckMessage.h"

using namespace mlir;
using namespace cleave::graph;

/// Checks that each of `scalars` (null allowed) has rank 0.
static LogicalResult checkScalars(std::optional<Location> loc,
                                  ArrayRef<Value> scalars) {
  for (Value value : scalars)
    if (value && denseTypeOf(value).getRank() != 0)
      return emitOptionalError(loc, "scalar operand has type ", value.getType(),
                               ", which is not of rank 0");
  return success();
}

/// Checks that gradient and state (null allowed) have the parameter's shape.
static LogicalResult checkUpdate(std::optional<Location> loc, Value parameter,
                                 ArrayRef<Value> others) {
  for (Value value : others)
    if (value &&
        denseTypeOf(value).getShape() != denseTypeOf(parameter).getShape())
      return emitOptionalError(loc, "gradient or state ", value.getType(),
                               " does not match parameter ",
                               parameter.getType());
  return success();
}

LogicalResult SeedOp::inferReturnTypes(MLIRContext *,
                                       std::optional<Location> loc,
                                       Adaptor adaptor,
                                       SmallVectorImpl<Type> &results) {
  if (failed(checkScalars(loc, {adaptor.getLoss(), adaptor.getScale()})))
    return failure();
  results.push_back(denseTypeOf(adaptor.getLoss()));
  return success();
}

LogicalResult GradientOp::inferReturnTypes(MLIRContext *,
                                           std::optional<Location>,
                                           Adaptor adaptor,
                                           SmallVectorImpl<Type> &results) {
  results.push_back(denseTypeOf(adaptor.getInput()));
  return success();
}

LogicalResult WrittenOp::inferReturnTypes(MLIRContext *,
                                          std::optional<Location>,
                                          Adaptor adaptor,
                                          SmallVectorImpl<Type> &results) {
  results.push_back(denseTypeOf(adaptor.getInput()));
  return success();
}

void CheckOp::build(OpBuilder &builder, OperationState &state, Value flag,
                    StringRef message, bool skips) {
  build(builder, state, flag, message, skips, /*room=*/false,
        /*values=*/Value());
}

LogicalResult CheckOp::verify() {
  if (denseTypeOf(getFlag()).getRank() != 0)
    return emitOpError("flag ") << getFlag().getType() << " must have rank 0";
  if (!getValues())
    return success();
  RankedTensorType values = denseTypeOf(getValues());
  if (values.getRank() != 1 || !values.getElementType().isInteger(64) ||
      values.getDimSize(0) < 1 || values.getDimSize(0) > kCheckValues)
    return emitOpError("values ")
           << values << " must be one to four 64-bit integers";
  return success();
}

LogicalResult GlobalNormOp::inferReturnTypes(MLIRContext *,
                                             std::optional<Location> loc,
                                             Adaptor adaptor,
                                             SmallVectorImpl<Type> &results) {
  if (adaptor.getGradients().empty())
    return emitOptionalError(loc, "needs at least one operand");
  Type element = denseTypeOf(adaptor.getGradients().front()).getElementType();
  for (Value value : adaptor.getGradients())
    if (denseTypeOf(value).getElementType() != element)
      return emitOptionalError(loc, "gradients have different element types");
  results.push_back(RankedTensorType::get({}, element));
  return success();
}

LogicalResult AdamWOp::inferReturnTypes(MLIRContext *,
                                        std::optional<Location> loc,
                                        Adaptor adaptor,
                                        SmallVectorImpl<Type> &results) {
  if (failed(checkScalars(loc, {adaptor.getLr(), adaptor.getCorrection1(),
                                adaptor.getSqrtCorrection2(),
                                adaptor.getGradientScale()})) ||
      failed(checkUpdate(
          loc, adaptor.getParameter(),
          {adaptor.getGradient(), adaptor.getExpAvg(), adaptor.getExpAvgSq()})))
    return failure();
  results.append({denseTypeOf(adaptor.getParameter()),
                  denseTypeOf(adaptor.getExpAvg()),
                  denseTypeOf(adaptor.getExpAvgSq())});
  return success();
}

LogicalResult SgdOp::inferReturnTypes(MLIRContext *,
                                      std::optional<Location> loc,
                                      Adaptor adaptor,
                                      SmallVectorImpl<Type> &results) {
  if (failed(checkScalars(loc, {adaptor.getLr(), adaptor.getStep(),
                                adaptor.getGradientScale()})) ||
      failed(checkUpdate(loc, adaptor.getParameter(),
                         {adaptor.getGradient(), adaptor.getMomentumBuffer()})))
    return failure();
  if (!adaptor.getMomentumBuffer() &&
      adaptor.getMomentum().convertToDouble() != 0.0)
    return emitOptionalError(loc, "momentum needs a buffer operand");
  results.push_back(denseTypeOf(adaptor.getParameter()));
  if (adaptor.getMomentumBuffer())
    results.push_back(denseTypeOf(adaptor.getMomentumBuffer()));
  return success();
}

LogicalResult EncodeOp::inferReturnTypes(MLIRContext *context,
                                         std::optional<Location>,
                                         Adaptor adaptor,
                                         SmallVectorImpl<Type> &results) {
  results.push_back(
      denseTypeOf(adaptor.getInput()).clone(IntegerType::get(context, 8)));
  return success();
}

LogicalResult DecodeOp::inferReturnTypes(MLIRContext *context,
                                         std::optional<Location> loc,
                                         Adaptor adaptor,
                                         SmallVectorImpl<Type> &results) {
  RankedTensorType type = denseTypeOf(adaptor.getInput());
  if (!type.getElementType().isInteger(8))
    return emitOptionalError(loc, "codes have type ", type, ", not i8");
  results.push_back(type.clone(Float32Type::get(context)));
  return success();
}

LogicalResult
OrthonormalizeOp::inferReturnTypes(MLIRContext *, std::optional<Location> loc,
                                   Adaptor adaptor,
                                   SmallVectorImpl<Type> &results) {
  RankedTensorType type = denseTypeOf(adaptor.getInput());
  if (type.getRank() < 2)
    return emitOptionalError(loc, "needs matrices, not ", type);
  ArrayRef<int64_t> sizes = type.getShape().take_back(2);
  if (sizes[1] > sizes[0])
    return emitOptionalError(loc, "at most ", sizes[0],
                             " columns of as many elements are orthonormal, "
                             "but ",
                             type, " has ", sizes[1]);
  results.push_back(type);
  return success();
}
