//===- ElementwiseKernels.cpp - Scalar code of element-wise ops -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "KernelModels.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/Matchers.h"
#include <cmath>

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

namespace {

//===----------------------------------------------------------------------===//
// One scalar function per op
//===----------------------------------------------------------------------===//

/// 1 / (1 + exp(-x)).
Value sigmoid(KernelBuilder &k, Value x) {
  Value one = k.constant(x.getType(), 1);
  return k.div(one, k.add(one, k.exp(k.neg(x))));
}

/// Twice the argument of tanh in the approximation of gelu.
Value geluArgument(KernelBuilder &k, Value x) {
  Type t = x.getType();
  double c = 2 * std::sqrt(2 / M_PI);
  Value square = k.mul(x, x);
  Value poly =
      k.add(k.mul(square, k.constant(t, c * 0.044715)), k.constant(t, c));
  return k.mul(x, poly);
}

Value scalar(NegOp, KernelBuilder &k, ArrayRef<Value> v) { return k.neg(v[0]); }
Value scalar(AbsOp, KernelBuilder &k, ArrayRef<Value> v) {
  OpBuilder &b = k.getBuilder();
  if (isa<FloatType>(v[0].getType()))
    return math::AbsFOp::create(b, k.getLoc(), v[0]);
  return math::AbsIOp::create(b, k.getLoc(), v[0]);
}
Value scalar(ExpOp, KernelBuilder &k, ArrayRef<Value> v) { return k.exp(v[0]); }
Value scalar(LogOp, KernelBuilder &k, ArrayRef<Value> v) { return k.log(v[0]); }
Value scalar(Expm1Op, KernelBuilder &k, ArrayRef<Value> v) {
  return math::ExpM1Op::create(k.getBuilder(), k.getLoc(), v[0]);
}
Value scalar(Log1pOp, KernelBuilder &k, ArrayRef<Value> v) {
  return math::Log1pOp::create(k.getBuilder(), k.getLoc(), v[0]);
}
Value scalar(SqrtOp, KernelBuilder &k, ArrayRef<Value> v) {
  return k.sqrt(v[0]);
}
Value scalar(RsqrtOp, KernelBuilder &k, ArrayRef<Value> v) {
  return k.div(k.constant(v[0].getType(), 1), k.sqrt(v[0]));
}
Value scalar(SinOp, KernelBuilder &k, ArrayRef<Value> v) {
  return math::SinOp::create(k.getBuilder(), k.getLoc(), v[0]);
}
Value scalar(CosOp, KernelBuilder &k, ArrayRef<Value> v) {
  return math::CosOp::create(k.getBuilder(), k.getLoc(), v[0]);
}
Value scalar(TanhOp, KernelBuilder &k, ArrayRef<Value> v) {
  return math::TanhOp::create(k.getBuilder(), k.getLoc(), v[0]);
}
Value scalar(ErfOp, KernelBuilder &k, ArrayRef<Value> v) {
  return math::ErfOp::create(k.getBuilder(), k.getLoc(), v[0]);
}
Value scalar(SigmoidOp, KernelBuilder &k, ArrayRef<Value> v) {
  return sigmoid(k, v[0]);
}
Value scalar(SiluOp, KernelBuilder &k, ArrayRef<Value> v) {
  return k.mul(v[0], sigmoid(k, v[0]));
}
Value scalar(ReluOp, KernelBuilder &k, ArrayRef<Value> v) {
  return k.max(v[0], k.constant(v[0].getType(), 0));
}
Value scalar(FloorOp, KernelBuilder &k, ArrayRef<Value> v) {
  return math::FloorOp::create(k.getBuilder(), k.getLoc(), v[0]);
}
Value scalar(StopGradientOp, KernelBuilder &, ArrayRef<Value> v) {
  return v[0];
}
Value scalar(NotOp, KernelBuilder &k, ArrayRef<Value> v) {
  Value ones = arith::ConstantOp::create(k.getBuilder(), k.getLoc(),
                                         k.getBuilder().getBoolAttr(true));
  return arith::XOrIOp::create(k.getBuilder(), k.getLoc(), v[0], ones);
}

Value scalar(GeluOp op, KernelBuilder &k, ArrayRef<Value> v) {
  Value x = v[0];
  Type t = x.getType();
  // 0.5 (1 + tanh(u)) is sigmoid(2u), which does not cancel for u < 0.
  if (op.getTanh())
    return k.mul(x, sigmoid(k, geluArgument(k, x)));
  Value erf = math::ErfOp::create(k.getBuilder(), k.getLoc(),
                                  k.mul(x, k.constant(t, M_SQRT1_2)));
  return k.mul(k.mul(x, k.constant(t, 0.5)), k.add(k.constant(t, 1), erf));
}

Value scalar(GeluGradOp op, KernelBuilder &k, ArrayRef<Value> v) {
  Value g = v[0], x = v[1];
  Type t = x.getType();
  Value one = k.constant(t, 1);
  if (op.getTanh()) {
    // With u = a x + b x^3: sigmoid(u) + x sigmoid(u) sigmoid(-u) u'. Both
    // sigmoids come from exp(-|u|), which cannot overflow.
    OpBuilder &b = k.getBuilder();
    double a = 2 * std::sqrt(2 / M_PI);
    Value u = geluArgument(k, x);
    Value q = k.exp(k.neg(math::AbsFOp::create(b, k.getLoc(), u)));
    Value inverse = k.div(one, k.add(one, q));
    Value other = k.mul(q, inverse);
    Value positive = arith::CmpFOp::create(
        b, k.getLoc(), arith::CmpFPredicate::OGE, u, k.constant(t, 0));
    Value s = k.select(positive, inverse, other);
    Value slope = k.add(k.mul(k.mul(x, x), k.constant(t, 3 * a * 0.044715)),
                        k.constant(t, a));
    Value tail = k.mul(k.mul(x, slope), k.mul(inverse, other));
    return k.mul(g, k.add(s, tail));
  }
  Value erf = math::ErfOp::create(k.getBuilder(), k.getLoc(),
                                  k.mul(x, k.constant(t, M_SQRT1_2)));
  Value cdf = k.mul(k.constant(t, 0.5), k.add(one, erf));
  Value pdf = k.mul(k.exp(k.mul(k.mul(x, x), k.constant(t, -0.5))),
                    k.constant(t, 1 / std::sqrt(2 * M_PI)));
  return k.mul(g, k.add(cdf, k.mul(x, pdf)));
}

Value scalar(CastOp op, KernelBuilder &k, ArrayRef<Value> v) {
  return k.cast(v[0], op.getType().getElementType());
}
Value scalar(AddOp, KernelBuilder &k, ArrayRef<Value> v) {
  return k.add(v[0], v[1]);
}
Value scalar(SubOp, KernelBuilder &k, ArrayRef<Value> v) {
  return k.sub(v[0], v[1]);
}
Value scalar(MulOp, KernelBuilder &k, ArrayRef<Value> v) {
  return k.mul(v[0], v[1]);
}
Value scalar(DivOp, KernelBuilder &k, ArrayRef<Value> v) {
  return k.div(v[0], v[1]);
}
Value scalar(RemOp, KernelBuilder &k, ArrayRef<Value> v) {
  if (isa<FloatType>(v[0].getType()))
    return arith::RemFOp::create(k.getBuilder(), k.getLoc(), v[0], v[1]);
  return arith::RemSIOp::create(k.getBuilder(), k.getLoc(), v[0], v[1]);
}
Value scalar(MaximumOp, KernelBuilder &k, ArrayRef<Value> v) {
  return k.max(v[0], v[1]);
}
Value scalar(MinimumOp, KernelBuilder &k, ArrayRef<Value> v) {
  return k.min(v[0], v[1]);
}

Value scalar(PowOp, KernelBuilder &k, ArrayRef<Value> v) {
  // The common exponents are products and roots: exact, and vectorised.
  APFloat exponent(0.0);
  if (matchPattern(v[1], m_ConstantFloat(&exponent))) {
    double e = exponent.convertToDouble();
    if (e == 1)
      return v[0];
    if (e == 2)
      return k.mul(v[0], v[0]);
    if (e == 3)
      return k.mul(k.mul(v[0], v[0]), v[0]);
    if (e == 0.5)
      return k.sqrt(v[0]);
    if (e == -1)
      return k.div(k.constant(v[0].getType(), 1), v[0]);
    if (e == -0.5)
      return k.div(k.constant(v[0].getType(), 1), k.sqrt(v[0]));
  }
  return math::PowFOp::create(k.getBuilder(), k.getLoc(), v[0], v[1]);
}

Value scalar(AndOp, KernelBuilder &k, ArrayRef<Value> v) {
  return k.min(v[0], v[1]);
}
Value scalar(OrOp, KernelBuilder &k, ArrayRef<Value> v) {
  return k.max(v[0], v[1]);
}

Value scalar(CompareOp op, KernelBuilder &k, ArrayRef<Value> v) {
  using F = arith::CmpFPredicate;
  using I = arith::CmpIPredicate;
  OpBuilder &b = k.getBuilder();
  if (isa<FloatType>(v[0].getType())) {
    F table[] = {F::OEQ, F::UNE, F::OLT, F::OLE, F::OGT, F::OGE};
    return arith::CmpFOp::create(b, k.getLoc(), table[(int)op.getPredicate()],
                                 v[0], v[1]);
  }
  // A bool is 0 or 1, not 0 or -1.
  bool isBool = v[0].getType().isInteger(1);
  I signedTable[] = {I::eq, I::ne, I::slt, I::sle, I::sgt, I::sge};
  I boolTable[] = {I::eq, I::ne, I::ult, I::ule, I::ugt, I::uge};
  return arith::CmpIOp::create(
      b, k.getLoc(), (isBool ? boolTable : signedTable)[(int)op.getPredicate()],
      v[0], v[1]);
}

Value scalar(SelectOp, KernelBuilder &k, ArrayRef<Value> v) {
  return k.select(v[0], v[1], v[2]);
}

/// An op whose element is a function of its operands' elements.
template <typename OpTy> struct Pointwise : FlatModel<Pointwise<OpTy>, OpTy> {
  LogicalResult emitKernel(Operation *op, KernelBuilder &k) const {
    auto shape = cast<RankedTensorType>(op->getResult(0).getType()).getShape();
    SmallVector<Value> values;
    for (Value operand : op->getOperands())
      values.push_back(k.readBroadcast(operand, shape));
    k.define(op->getResult(0), scalar(cast<OpTy>(op), k, values));
    return success();
  }
};

//===----------------------------------------------------------------------===//
// Random and generated elements
//===----------------------------------------------------------------------===//

/// The 32 random bits of the current element of a tensor of `shape`.
template <typename OpTy>
Value draw(OpTy op, ArrayRef<int64_t> shape, KernelBuilder &k) {
  // Strides of the global tensor number the elements.
  ArrayRef<int64_t> global = shape;
  if (auto whole = op.getGlobalShape())
    global = *whole;
  SmallVector<int64_t> steps(global.size(), 1);
  for (int64_t d = (int64_t)global.size() - 2; d >= 0; --d)
    steps[d] = steps[d + 1] * global[d + 1];
  Value base;
  int64_t multiple = 0;
  if (op.getOrigin())
    for (size_t d = 0; d < global.size(); ++d) {
      if (global[d] == shape[d])
        continue;
      Value part = k.mul(k.readScalar(op.getOrigin(), {(int64_t)d}),
                         k.constant(k.getBuilder().getI64Type(), steps[d]));
      base = base ? k.add(base, part) : part;
      multiple = std::gcd(multiple, steps[d]);
    }
  Value seed = k.readScalar(op.getRng(), {0});
  Value step = k.readScalar(op.getRng(), {1});
  return k.philox(seed, step, base, std::max<int64_t>(1, multiple), shape,
                  steps, op.getId());
}

struct Dropout : FlatModel<Dropout, DropoutOp> {
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<DropoutOp>(operation);
    auto type = cast<RankedTensorType>(op.getInput().getType());
    Value x = k.readInOrder(op.getInput());
    double p = op.getProbability().convertToDouble();
    Value zero = k.constant(x.getType(), 0);
    if (p >= 1) {
      k.define(op.getOutput(), zero);
      return success();
    }
    Value bits = draw(op, type.getShape(), k);
    OpBuilder &b = k.getBuilder();
    Value threshold = arith::ConstantOp::create(
        b, k.getLoc(),
        b.getI32IntegerAttr((int32_t)(uint32_t)std::floor(p * 4294967296.0)));
    Value keep = arith::CmpIOp::create(b, k.getLoc(), arith::CmpIPredicate::uge,
                                       bits, threshold);
    Value scaled = k.mul(x, k.constant(x.getType(), 1 / (1 - p)));
    k.define(op.getOutput(), k.select(keep, scaled, zero));
    return success();
  }
};

struct Uniform : FlatModel<Uniform, UniformOp> {
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<UniformOp>(operation);
    OpBuilder &b = k.getBuilder();
    Value bits = draw(op, op.getType().getShape(), k);
    Value eight =
        arith::ConstantOp::create(b, k.getLoc(), b.getI32IntegerAttr(8));
    Value upper = arith::ShRUIOp::create(b, k.getLoc(), bits, eight);
    // Below 2^24: exact in f32, and not negative.
    Value value = k.cast(upper, b.getF32Type());
    value = k.mul(value, k.constant(value.getType(), 0x1p-24));
    k.define(op.getOutput(), value);
    return success();
  }
};

struct Iota : FlatModel<Iota, IotaOp> {
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<IotaOp>(operation);
    auto type = cast<RankedTensorType>(op.getOutput().getType());
    Value index = k.index(type.getShape(), op.getDim());
    // The attribute is read as unsigned, but may be negative.
    index = k.add(index, k.constant(index.getType(),
                                    static_cast<int64_t>(op.getStart())));
    k.define(op.getOutput(), k.cast(index, type.getElementType()));
    return success();
  }
};

template <typename... Ops> void attachPointwise(MLIRContext *context) {
  (Ops::template attachInterface<Pointwise<Ops>>(*context), ...);
}

} // namespace

void cleave::attachElementwiseKernels(MLIRContext *context) {
  attachPointwise<NegOp, AbsOp, ExpOp, Expm1Op, LogOp, Log1pOp, SqrtOp, RsqrtOp,
                  SinOp, CosOp, TanhOp, ErfOp, SigmoidOp, SiluOp, ReluOp,
                  FloorOp, NotOp, StopGradientOp, GeluOp, GeluGradOp, CastOp,
                  AddOp, SubOp, MulOp, DivOp, RemOp, MaximumOp, MinimumOp,
                  PowOp, AndOp, OrOp, CompareOp, SelectOp>(context);
  DropoutOp::attachInterface<Dropout>(*context);
  UniformOp::attachInterface<Uniform>(*context);
  IotaOp::attachInterface<Iota>(*context);
}
