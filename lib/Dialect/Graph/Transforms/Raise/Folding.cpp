//===- Folding.cpp - Ops that fold as they are built ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Folding.h"
#include "Matching.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

static ArrayRef<int64_t> shapeOf(Value value) {
  return tensorTypeOf(value).getShape();
}

Value Folding::reshape(Value x, ArrayRef<int64_t> shape) {
  while (auto op = x.getDefiningOp<ReshapeOp>())
    x = op.getInput();
  return Formula{builder, loc}.reshape(x, shape);
}

Value Folding::transpose(Value x, ArrayRef<int64_t> permutation) {
  SmallVector<int64_t> order(permutation);
  if (auto op = x.getDefiningOp<TransposeOp>()) {
    for (int64_t &dim : order)
      dim = op.getPermutation()[dim];
    x = op.getInput();
  }
  if (llvm::equal(order, llvm::seq<int64_t>(0, order.size())))
    return x;
  return TransposeOp::create(builder, loc, x, order);
}

Value Folding::broadcast(Value x, ArrayRef<int64_t> shape) {
  while (auto op = x.getDefiningOp<BroadcastOp>())
    x = op.getInput();
  return Formula{builder, loc}.broadcast(x, shape);
}

Value Folding::scalar(Type element, double number) {
  return Formula{builder, loc}.splat(RankedTensorType::get({}, element),
                                     number);
}

Value Folding::cast(Value x, Type element) {
  RankedTensorType type = tensorTypeOf(x);
  if (type.getElementType() == element)
    return x;
  if (type.getRank() == 0 && isa<FloatType>(element) &&
      isa<FloatType>(type.getElementType()))
    if (std::optional<double> number = scalarOf(x))
      return scalar(element, *number);
  Value &known = casts[{x, element}];
  if (!known)
    known = Formula{builder, loc}.cast(x, element);
  return known;
}

/// The two operands of an op of shape `shape` without broadcasts that the op
/// implies.
static std::pair<Value, Value> unbroadcast(Value a, Value b,
                                           ArrayRef<int64_t> shape) {
  auto strip = [&](Value x, Value other) {
    while (auto op = x.getDefiningOp<BroadcastOp>()) {
      auto joined = broadcastShapes({shapeOf(op.getInput()), shapeOf(other)});
      if (!joined || ArrayRef(*joined) != shape)
        break;
      x = op.getInput();
    }
    return x;
  };
  a = strip(a, b);
  b = strip(b, a);
  return {a, b};
}

static SmallVector<int64_t> jointShape(Value a, Value b) {
  auto shape = broadcastShapes({shapeOf(a), shapeOf(b)});
  assert(shape && "operands broadcast");
  return SmallVector<int64_t>(*shape);
}

/// `a` or `b` where the other one changes nothing: is `neutral`.
static Value unchanged(Value a, Value b, ArrayRef<int64_t> shape,
                       double neutral) {
  for (auto [x, y] : {std::pair(a, b), std::pair(b, a)})
    if (shapeOf(x) == shape && scalarOf(y) == neutral)
      return x;
  return {};
}

Value Folding::add(Value a, Value b) {
  SmallVector<int64_t> shape = jointShape(a, b);
  std::tie(a, b) = unbroadcast(a, b, shape);
  if (Value same = unchanged(a, b, shape, 0))
    return same;
  return AddOp::create(builder, loc, a, b);
}

Value Folding::scaled(Value x, double factor) {
  if (factor == 1)
    return x;
  SmallVector<int64_t> shape(shapeOf(x));
  Value number = scalar(tensorTypeOf(x).getElementType(), factor);
  std::tie(x, number) = unbroadcast(x, number, shape);
  return MulOp::create(builder, loc, x, number);
}

Value Folding::both(Value a, Value b) {
  SmallVector<int64_t> shape = jointShape(a, b);
  std::tie(a, b) = unbroadcast(a, b, shape);
  if (Value same = unchanged(a, b, shape, 1))
    return same;
  return AndOp::create(builder, loc, a, b);
}

Value Folding::negated(Value condition) {
  if (auto op = condition.getDefiningOp<NotOp>())
    return op.getInput();
  return NotOp::create(builder, loc, condition);
}

Value Folding::greater(Value x, double number) {
  SmallVector<int64_t> shape(shapeOf(x));
  Value bound = scalar(tensorTypeOf(x).getElementType(), number);
  std::tie(x, bound) = unbroadcast(x, bound, shape);
  return CompareOp::create(builder, loc, Predicate::gt, x, bound);
}

Value Folding::where(Value condition, Value x) {
  Value zero = scalar(tensorTypeOf(x).getElementType(), 0);
  SmallVector<int64_t> shape = jointShape(condition, x);
  std::tie(condition, x) = unbroadcast(condition, x, shape);
  return SelectOp::create(builder, loc, condition, x, zero);
}
