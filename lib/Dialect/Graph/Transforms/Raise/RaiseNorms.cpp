//===- RaiseNorms.cpp - Norms that are composed of smaller ops ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Matching.h"
#include "cleave/Dialect/Graph/IR/Attributes/ChosenPrecision.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include <cmath>

namespace cleave::graph {
#define GEN_PASS_DEF_RAISENORMS
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"
} // namespace cleave::graph

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

/// Whether shapes are equal but for leading dimensions of size 1.
static bool sameFromTheEnd(ArrayRef<int64_t> a, ArrayRef<int64_t> b) {
  auto isOne = [](int64_t size) { return size == 1; };
  return a.drop_while(isOne) == b.drop_while(isOne);
}

namespace {

/// What is computed of the rows of a tensor `x`, its elements along the last
/// dimension: one number for each row, of any shape, or the same number for all
/// elements of a row, of the shape of `x`.
class Rows {
public:
  explicit Rows(Value x)
      : shape(tensorTypeOf(x).getShape()), kept(shape),
        count(tensorTypeOf(x).getNumElements() / std::max<int64_t>(1, row())) {
    kept.back() = 1;
  }

  /// `value`, read by an op that computes `reader`, before broadcasts and
  /// reshapes; null where it does not give each row its number.
  Value source(Value value, Value reader, bool flows = false) const;

  /// The tensor of which `value`, read for `reader`, is the mean of each row;
  /// null if it is none. With `flows`, a stop_gradient of the mean is ignored.
  Value meanOf(Value value, Value reader, bool flows = false) const;

  /// The epsilon if `value` is mean(x^2) + epsilon, for each row.
  std::optional<double> epsilonOf(Value x, Value value, Value reader) const;

private:
  int64_t row() const { return shape.back(); }
  bool passes(Value inner, Value outer) const;
  bool isSame(Value a, Value b) const;

  ArrayRef<int64_t> shape;
  /// The shape with one number for each row, and how many rows there are.
  SmallVector<int64_t> kept;
  int64_t count;
};

} // namespace

/// Whether the rows of `inner` are those of `outer`, which is computed from it
/// element by element or by moving elements.
bool Rows::passes(Value inner, Value outer) const {
  RankedTensorType from = tensorTypeOf(inner), to = tensorTypeOf(outer);
  // As many numbers as rows stay in their order.
  if (to.getNumElements() == count)
    return from.getNumElements() == count;
  return sameFromTheEnd(to.getShape(), shape) &&
         (sameFromTheEnd(from.getShape(), shape) ||
          sameFromTheEnd(from.getShape(), kept));
}

Value Rows::source(Value value, Value reader, bool flows) const {
  if (!passes(value, reader))
    return {};
  while (Operation *op = value.getDefiningOp()) {
    if (!isa<ReshapeOp, BroadcastOp>(op) && !(flows && isa<StopGradientOp>(op)))
      break;
    Value inner = op->getOperand(0);
    if (isa<ReshapeOp>(op) && withoutUnits(tensorTypeOf(inner).getShape()) !=
                                  withoutUnits(tensorTypeOf(value).getShape()))
      break;
    if (!passes(inner, value))
      return {};
    value = inner;
  }
  return value;
}

Value Rows::meanOf(Value value, Value reader, bool flows) const {
  value = source(value, reader, flows);
  if (!value)
    return {};
  SmallVector<std::pair<Value, Value>, 2> orders = bothOrders<MulOp>(value);
  auto div = value.getDefiningOp<DivOp>();
  if (div)
    orders.push_back({div->getOperand(0), div->getOperand(1)});
  for (auto [total, factor] : orders) {
    std::optional<double> number = numberOf(factor);
    if (!number || *number == 0)
      continue;
    Value sum = source(total, value);
    auto reduce = sum ? sum.getDefiningOp<ReduceOp>() : ReduceOp();
    if (!reduce || reduce.getKind() != ReductionKind::Sum ||
        reduce.getDims().size() != 1 ||
        reduce.getDims()[0] != static_cast<int64_t>(shape.size()) - 1 ||
        tensorTypeOf(reduce.getInput()).getShape() != shape)
      continue;
    double size = div ? *number : 1 / *number;
    if (std::abs(size - row()) < 1e-6 * size)
      return reduce.getInput();
  }
  return {};
}

/// Whether both are the same value, or the same value minus its mean.
bool Rows::isSame(Value a, Value b) const {
  if (a == b)
    return true;
  auto centred = [&](Value value) -> Value {
    auto sub = value.getDefiningOp<SubOp>();
    if (!sub || sub.getLhs() != meanOf(sub.getRhs(), value, /*flows=*/true))
      return {};
    return sub.getLhs();
  };
  Value source = centred(a);
  return source && source == centred(b);
}

std::optional<double> Rows::epsilonOf(Value x, Value value,
                                      Value reader) const {
  value = source(value, reader);
  if (!value)
    return std::nullopt;
  for (auto [mean, epsilon] : bothOrders<AddOp>(value)) {
    std::optional<double> number = numberOf(epsilon);
    Value squares = number ? meanOf(mean, value) : Value();
    auto mul = squares ? squares.getDefiningOp<MulOp>() : MulOp();
    if (mul && isSame(mul.getLhs(), x) && isSame(mul.getRhs(), x))
      return number;
  }
  return std::nullopt;
}

/// The epsilon if `scale`, a factor of `x` in `root`, is
/// 1 / sqrt(mean(x^2) + epsilon).
static std::optional<double> epsilonOfFactor(const Rows &rows, Value x,
                                             Value scale, Value root) {
  scale = rows.source(scale, root);
  if (!scale)
    return std::nullopt;
  if (auto rsqrt = scale.getDefiningOp<RsqrtOp>())
    return rows.epsilonOf(x, rsqrt.getInput(), scale);
  auto div = scale.getDefiningOp<DivOp>();
  if (!div || numberOf(div.getLhs()) != 1.0)
    return std::nullopt;
  Value deviation = rows.source(div.getRhs(), scale);
  auto root2 = deviation ? deviation.getDefiningOp<SqrtOp>() : SqrtOp();
  if (!root2)
    return std::nullopt;
  return rows.epsilonOf(x, root2.getInput(), deviation);
}

namespace {

/// One op that may be the last one of a norm.
class Root {
public:
  explicit Root(Operation *op)
      : op(op), result(op->getResult(0)), builder(op), inherit(builder, op) {}

  /// Whether it became a norm, or a part of the norm that it reads.
  bool raise() { return raiseNorm() || raiseWeight() || raiseBias(); }

private:
  bool raiseNorm();
  bool raiseWeight();
  bool raiseBias();
  bool normalise(Value x, double epsilon);
  Value vectorOf(Value value);
  bool replace(Value value) {
    result.replaceAllUsesWith(value);
    return true;
  }

  Operation *op;
  Value result;
  OpBuilder builder;
  InheritPrecision inherit;
};

} // namespace

/// Replaces the root by the norm of `x`.
bool Root::normalise(Value x, double epsilon) {
  FloatAttr number = builder.getF64FloatAttr(epsilon);
  if (auto sub = x.getDefiningOp<SubOp>();
      sub && Rows(x).meanOf(sub.getRhs(), x) == sub.getLhs())
    return replace(LayerNormOp::create(builder, op->getLoc(), sub.getLhs(),
                                       Value(), Value(), number)
                       .getOutput());
  return replace(
      RmsNormOp::create(builder, op->getLoc(), x, Value(), number).getOutput());
}

bool Root::raiseNorm() {
  auto fits = [&](Value x) {
    RankedTensorType type = tensorTypeOf(x);
    return type == result.getType() && type.getRank() > 0 &&
           type.getNumElements() > 0 && isa<FloatType>(type.getElementType());
  };
  for (auto [x, scale] : bothOrders<MulOp>(result))
    if (fits(x))
      if (auto epsilon = epsilonOfFactor(Rows(x), x, scale, result))
        return normalise(x, *epsilon);
  auto div = dyn_cast<DivOp>(op);
  if (!div || !fits(div.getLhs()))
    return false;
  Rows rows(div.getLhs());
  Value deviation = rows.source(div.getRhs(), result);
  auto sqrt = deviation ? deviation.getDefiningOp<SqrtOp>() : SqrtOp();
  if (!sqrt)
    return false;
  auto epsilon = rows.epsilonOf(div.getLhs(), sqrt.getInput(), deviation);
  return epsilon && normalise(div.getLhs(), *epsilon);
}

/// The vector that `value` is along the last dimension of the root, or null.
Value Root::vectorOf(Value value) {
  int64_t size = tensorTypeOf(result).getShape().back();
  RankedTensorType type = tensorTypeOf(value);
  if (type.getNumElements() != size ||
      (type.getRank() && type.getShape().back() != size))
    return {};
  value = withoutUnits(value);
  type = tensorTypeOf(value);
  return type.getRank() == 1 && type.getDimSize(0) == size ? value : Value();
}

bool Root::raiseWeight() {
  for (auto [x, factor] : bothOrders<MulOp>(result)) {
    if (x.getType() != result.getType())
      continue;
    if (auto norm = x.getDefiningOp<RmsNormOp>();
        norm && x == norm.getOutput() && !norm.getWeight())
      if (Value weight = vectorOf(factor))
        return replace(RmsNormOp::create(builder, op->getLoc(), norm.getInput(),
                                         weight, norm.getEpsilonAttr())
                           .getOutput());
    if (auto norm = x.getDefiningOp<LayerNormOp>();
        norm && x == norm.getOutput() && !norm.getWeight() && !norm.getBias())
      if (Value weight = vectorOf(factor))
        return replace(LayerNormOp::create(builder, op->getLoc(),
                                           norm.getInput(), weight, Value(),
                                           norm.getEpsilonAttr())
                           .getOutput());
  }
  return false;
}

bool Root::raiseBias() {
  for (auto [x, term] : bothOrders<AddOp>(result)) {
    auto norm = x.getDefiningOp<LayerNormOp>();
    if (!norm || x != norm.getOutput() || norm.getBias() ||
        x.getType() != result.getType())
      continue;
    if (Value bias = vectorOf(term))
      return replace(LayerNormOp::create(builder, op->getLoc(), norm.getInput(),
                                         norm.getWeight(), bias,
                                         norm.getEpsilonAttr())
                         .getOutput());
  }
  return false;
}

namespace {
struct RaiseNorms final : cleave::graph::impl::RaiseNormsBase<RaiseNorms> {
  void runOnOperation() override {
    SmallVector<Operation *> replaced;
    for (auto function : getOperation().getOps<func::FuncOp>())
      for (Block &block : function.getBody())
        for (Operation &op : block)
          if (isa<MulOp, DivOp, AddOp>(op) && Root(&op).raise())
            replaced.push_back(&op);
    eraseUnread(replaced);
  }
};
} // namespace
