//===- Formula.cpp - Ops written as formulas ------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Formula.h"
#include <cmath>

using namespace mlir;
using namespace cleave::graph;

Value Formula::neg(Value a) { return NegOp::create(builder, loc, a); }
Value Formula::add(Value a, Value b) {
  return AddOp::create(builder, loc, a, b);
}
Value Formula::sub(Value a, Value b) {
  return SubOp::create(builder, loc, a, b);
}
Value Formula::mul(Value a, Value b) {
  return MulOp::create(builder, loc, a, b);
}
Value Formula::div(Value a, Value b) {
  return DivOp::create(builder, loc, a, b);
}
Value Formula::pow(Value a, Value b) {
  return PowOp::create(builder, loc, a, b);
}
Value Formula::compare(Predicate predicate, Value a, Value b) {
  return CompareOp::create(builder, loc, predicate, a, b);
}
Value Formula::select(Value condition, Value a, Value b) {
  return SelectOp::create(builder, loc, condition, a, b);
}
Value Formula::sum(Value a, ArrayRef<int64_t> dims) {
  if (dims.empty())
    return a;
  return ReduceOp::create(builder, loc, ReductionKind::Sum, a, dims);
}
Value Formula::contract(StringRef equation, Value a, Value b, Type element) {
  TypeAttr wider;
  if (element && element != tensorTypeOf(a).getElementType())
    wider = TypeAttr::get(element);
  return ContractOp::create(builder, loc, builder.getStringAttr(equation), a, b,
                            wider);
}

/// `value` rounded to `type` as graph.cast does.
static FloatAttr roundedTo(FloatType type, double value) {
  const llvm::fltSemantics &semantics = type.getFloatSemantics();
  APFloat number(value);
  bool inexact;
  number.convert(semantics, APFloat::rmNearestTiesToEven, &inexact);
  // Without infinities, what is too large is the largest value.
  if (number.isNaN() && !std::isnan(value))
    number = APFloat::getLargest(semantics, /*Negative=*/std::signbit(value));
  return FloatAttr::get(type, number);
}

Value Formula::splat(RankedTensorType type, double value) {
  Type element = type.getElementType();
  Attribute attribute;
  if (auto floating = dyn_cast<FloatType>(element))
    attribute = roundedTo(floating, value);
  else
    attribute = builder.getIntegerAttr(element, static_cast<int64_t>(value));
  return ConstantOp::create(builder, loc,
                            DenseElementsAttr::get(type, attribute));
}

Value Formula::scalar(Value like, double value) {
  return splat(RankedTensorType::get({}, tensorTypeOf(like).getElementType()),
               value);
}

Value Formula::cast(Value a, Type element) {
  RankedTensorType type = tensorTypeOf(a);
  if (type.getElementType() == element)
    return a;
  return CastOp::create(builder, loc, type.clone(element), a);
}

Value Formula::reshape(Value a, ArrayRef<int64_t> shape) {
  RankedTensorType type = tensorTypeOf(a);
  if (type.getShape() == shape)
    return a;
  return ReshapeOp::create(builder, loc, type.clone(shape), a);
}

Value Formula::broadcast(Value a, ArrayRef<int64_t> shape) {
  RankedTensorType type = tensorTypeOf(a);
  if (type.getShape() == shape)
    return a;
  return BroadcastOp::create(builder, loc, type.clone(shape), a);
}

Value Formula::reduceTo(Value a, ArrayRef<int64_t> shape) {
  ArrayRef<int64_t> from = tensorTypeOf(a).getShape();
  size_t lead = from.size() - shape.size();
  SmallVector<int64_t> dims;
  for (size_t i = 0; i < from.size(); ++i)
    if (i < lead || (shape[i - lead] == 1 && from[i] != 1))
      dims.push_back(i);
  return reshape(sum(a, dims), shape);
}

Value Formula::expandTo(Value a, ArrayRef<int64_t> dims,
                        ArrayRef<int64_t> shape) {
  // Broadcasting restores leading dimensions itself.
  SmallVector<int64_t> kept(shape);
  for (int64_t dim : dims)
    kept[dim] = 1;
  if (llvm::all_of(dims, [&](int64_t dim) {
        return dim < static_cast<int64_t>(dims.size());
      }))
    return broadcast(a, shape);
  return broadcast(reshape(a, kept), shape);
}

std::optional<double> cleave::graph::getSplatValue(Value value) {
  auto constant = value.getDefiningOp<ConstantOp>();
  if (!constant)
    return std::nullopt;
  auto elements = dyn_cast<DenseElementsAttr>(constant.getValue());
  if (!elements || !elements.isSplat())
    return std::nullopt;
  if (isa<FloatType>(elements.getElementType())) {
    APFloat number = elements.getSplatValue<APFloat>();
    bool loses;
    number.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven, &loses);
    return number.convertToDouble();
  }
  if (elements.getElementType().isInteger(1))
    return elements.getSplatValue<bool>() ? 1.0 : 0.0;
  return static_cast<double>(elements.getSplatValue<APInt>().getSExtValue());
}
