//===- Elementwise.cpp - Types of element-wise results --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave::graph;

/// The result type of broadcasting `values`, whose element types must agree;
/// its element type is `element`, or theirs if that is null.
static LogicalResult inferBroadcast(std::optional<Location> loc,
                                    ValueRange values, Type element,
                                    SmallVectorImpl<Type> &results) {
  SmallVector<ArrayRef<int64_t>> shapes;
  Type common;
  for (Value value : values) {
    auto type = cast<RankedTensorType>(value.getType());
    shapes.push_back(type.getShape());
    if (common && common != type.getElementType())
      return emitOptionalError(loc, "operands have different element types, ",
                               common, " and ", type.getElementType(),
                               "; insert a graph.cast");
    common = type.getElementType();
  }
  auto shape = broadcastShapes(shapes);
  if (!shape) {
    std::string text;
    llvm::raw_string_ostream os(text);
    llvm::interleave(values, os, [&](Value v) { os << v.getType(); }, " and ");
    return emitOptionalError(loc, "operands of types ", text,
                             " do not broadcast");
  }
  results.push_back(RankedTensorType::get(*shape, element ? element : common));
  return success();
}

#define INFER_POINTWISE(OP)                                                    \
  LogicalResult OP::inferReturnTypes(                                          \
      MLIRContext *, std::optional<Location> loc, Adaptor adaptor,             \
      SmallVectorImpl<Type> &results) {                                        \
    return inferBroadcast(loc, adaptor.getOperands(), nullptr, results);       \
  }
INFER_POINTWISE(NegOp)
INFER_POINTWISE(AbsOp)
INFER_POINTWISE(ExpOp)
INFER_POINTWISE(Expm1Op)
INFER_POINTWISE(LogOp)
INFER_POINTWISE(Log1pOp)
INFER_POINTWISE(SqrtOp)
INFER_POINTWISE(RsqrtOp)
INFER_POINTWISE(SinOp)
INFER_POINTWISE(CosOp)
INFER_POINTWISE(TanhOp)
INFER_POINTWISE(ErfOp)
INFER_POINTWISE(SigmoidOp)
INFER_POINTWISE(SiluOp)
INFER_POINTWISE(ReluOp)
INFER_POINTWISE(FloorOp)
INFER_POINTWISE(StopGradientOp)
INFER_POINTWISE(NotOp)
INFER_POINTWISE(GeluOp)
INFER_POINTWISE(GeluGradOp)
INFER_POINTWISE(AddOp)
INFER_POINTWISE(SubOp)
INFER_POINTWISE(MulOp)
INFER_POINTWISE(DivOp)
INFER_POINTWISE(RemOp)
INFER_POINTWISE(MaximumOp)
INFER_POINTWISE(MinimumOp)
INFER_POINTWISE(PowOp)
INFER_POINTWISE(AndOp)
INFER_POINTWISE(OrOp)
#undef INFER_POINTWISE

LogicalResult CompareOp::inferReturnTypes(MLIRContext *context,
                                          std::optional<Location> loc,
                                          Adaptor adaptor,
                                          SmallVectorImpl<Type> &results) {
  return inferBroadcast(loc, adaptor.getOperands(),
                        IntegerType::get(context, 1), results);
}

LogicalResult SelectOp::inferReturnTypes(MLIRContext *,
                                         std::optional<Location> loc,
                                         Adaptor adaptor,
                                         SmallVectorImpl<Type> &results) {
  SmallVector<Type> branches;
  if (failed(inferBroadcast(loc, {adaptor.getOnTrue(), adaptor.getOnFalse()},
                            nullptr, branches)))
    return failure();
  auto branch = cast<RankedTensorType>(branches[0]);
  auto condition = cast<RankedTensorType>(adaptor.getCondition().getType());
  auto shape = broadcastShapes({branch.getShape(), condition.getShape()});
  if (!shape)
    return emitOptionalError(loc, "condition of type ", condition,
                             " does not broadcast with branches of type ",
                             branch);
  results.push_back(RankedTensorType::get(*shape, branch.getElementType()));
  return success();
}

LogicalResult DropoutOp::inferReturnTypes(MLIRContext *,
                                          std::optional<Location> loc,
                                          Adaptor adaptor,
                                          SmallVectorImpl<Type> &results) {
  auto type = cast<RankedTensorType>(adaptor.getInput().getType());
  results.push_back(
      RankedTensorType::get(type.getShape(), type.getElementType()));
  return success();
}

/// Checks the operands of an op that draws random numbers, and its position in
/// the global tensor.
template <typename Op> static LogicalResult verifyDraws(Op op) {
  if (op.getRng().getType().getShape()[0] != 2)
    return op.emitOpError("rng must hold two values, seed and step");
  int64_t rank = cast<RankedTensorType>(op.getType()).getRank();
  if (op.getOrigin() && !op.getGlobalShape())
    return op.emitOpError("origin needs a global_shape");
  if ((op.getOrigin() && op.getOrigin().getType().getShape()[0] != rank) ||
      (op.getGlobalShape() &&
       static_cast<int64_t>(op.getGlobalShape()->size()) != rank))
    return op.emitOpError(
        "origin and global_shape need one value per dimension");
  return success();
}

LogicalResult DropoutOp::verify() {
  double p = getProbability().convertToDouble();
  if (!(p >= 0.0 && p < 1.0))
    return emitOpError("probability must be at least 0 and below 1");
  if (failed(verifyDraws(*this)))
    return failure();
  if (static_cast<bool>(getStarts()) != getStartsDim().has_value())
    return emitOpError("starts and starts_dim go together");
  if (getStarts()) {
    int64_t dim = *getStartsDim();
    int64_t rank = cast<RankedTensorType>(getInput().getType()).getRank();
    int64_t pieces = getStarts().getType().getShape()[0];
    if (dim < 0 || dim >= rank || pieces == 0 ||
        getInput().getType().getDimSize(dim) % pieces != 0)
      return emitOpError("starts must divide a dimension");
  }
  return success();
}

LogicalResult UniformOp::verify() {
  unsigned width = getType().getElementType().getIntOrFloatBitWidth();
  if (width < 32)
    return emitOpError(
        "result must be f32 or f64: a narrower type rounds to 1");
  return verifyDraws(*this);
}

LogicalResult IotaOp::verify() {
  auto type = cast<RankedTensorType>(getType());
  int64_t dim = getDim();
  if (dim < 0 || dim >= type.getRank())
    return emitOpError("dim ") << dim << " is not a dimension of " << type;
  if (type.getElementType().isInteger(1))
    return emitOpError("cannot count in i1");
  return success();
}

LogicalResult CastOp::verify() {
  auto from = cast<RankedTensorType>(getInput().getType());
  auto to = cast<RankedTensorType>(getType());
  if (from.getShape() != to.getShape())
    return emitOpError("changes the shape from ") << from << " to " << to;
  return success();
}
