//===- OptimizerKernels.cpp - Scalar code of the optimizer ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "KernelModels.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include <cmath>

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

namespace {

KernelSpace flatOf(Value value) {
  return KernelSpace::flat(numElements(value));
}

struct SeedModel : KernelLoweringInterface::ExternalModel<SeedModel, SeedOp> {
  KernelSpace getKernelSpace(Operation *op) const {
    return flatOf(op->getResult(0));
  }
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<SeedOp>(operation);
    auto type = cast<RankedTensorType>(op.getOutput().getType());
    Value seed = k.constant(k.computeType(type.getElementType()), 1);
    if (op.getScale())
      seed = k.readBroadcast(op.getScale(), type.getShape());
    k.define(op.getOutput(), seed);
    return success();
  }
};

/// The identity: the fuser forwards its operand.
template <typename OpTy>
struct IdentityModel
    : KernelLoweringInterface::ExternalModel<IdentityModel<OpTy>, OpTy> {
  KernelSpace getKernelSpace(Operation *op) const {
    return flatOf(op->getResult(0));
  }
  LogicalResult emitKernel(Operation *op, KernelBuilder &k) const {
    k.define(op->getResult(0), k.readInOrder(op->getOperand(0)));
    return success();
  }
};

struct AdamWModel
    : KernelLoweringInterface::ExternalModel<AdamWModel, AdamWOp> {
  KernelSpace getKernelSpace(Operation *op) const {
    return flatOf(op->getOperand(0));
  }
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<AdamWOp>(operation);
    Value p = k.readInOrder(op.getParameter());
    Value g = k.readInOrder(op.getGradient());
    Value m = k.readInOrder(op.getExpAvg());
    Value v = k.readInOrder(op.getExpAvgSq());
    Value lr = k.readScalar(op.getLr());
    Value correction1 = k.readScalar(op.getCorrection1());
    Value correction2 = k.readScalar(op.getSqrtCorrection2());
    Type t = p.getType();
    if (op.getGradientScale())
      g = k.mul(g, k.readScalar(op.getGradientScale()));
    auto constant = [&](APFloat value) {
      return k.constant(t, value.convertToDouble());
    };
    auto complement = [&](APFloat value) {
      return k.constant(t, 1 - value.convertToDouble());
    };
    if (!op.getWeightDecay().isZero())
      p = k.mul(
          p, k.sub(k.constant(t, 1), k.mul(lr, constant(op.getWeightDecay()))));
    m = k.add(m, k.mul(k.sub(g, m), complement(op.getBeta1())));
    v = k.add(k.mul(v, constant(op.getBeta2())),
              k.mul(k.mul(g, g), complement(op.getBeta2())));
    Value step = k.div(lr, correction1);
    Value root =
        k.add(k.div(k.sqrt(v), correction2), constant(op.getEpsilon()));
    p = k.sub(p, k.mul(step, k.div(m, root)));
    k.define(op.getNewParameter(), p);
    k.define(op.getNewExpAvg(), m);
    k.define(op.getNewExpAvgSq(), v);
    return success();
  }
};

/// The dynamic code: code `k + shift` is `2^e + f`, with exponents `e` from
/// `first` to `last`.
struct DynamicCode {
  explicit DynamicCode(bool nonnegative)
      : first(nonnegative ? 1 : 0), last(nonnegative ? 7 : 6),
        shift(nonnegative ? 1 : 0) {}
  int first, last, shift;

  double scale(int e) const { return std::pow(10.0, e - last); }
  static double size(int e) { return static_cast<double>(1 << e); }
  /// The middle of the largest value of `e - 1` and the smallest one of `e`.
  double bound(int e) const { return scale(e - 1) * (1 + 0.9 / size(e - 1)); }
  /// The code of 1.
  int largest() const { return 2 * static_cast<int>(size(last)) - shift; }
};

Value isAbove(KernelBuilder &k, Value x, double bound) {
  return arith::CmpFOp::create(k.getBuilder(), k.getLoc(),
                               arith::CmpFPredicate::OGT, x,
                               k.constant(x.getType(), bound));
}

Value fma(KernelBuilder &k, Value a, Value b, Value c) {
  return math::FmaOp::create(k.getBuilder(), k.getLoc(), a, b, c);
}

/// The lowest 8 bits of a float that is an integer, without the comparisons of
/// a conversion that saturates: added to a number of which a unit is the last
/// bit, it is in the last bits.
Value lowestByte(KernelBuilder &k, Value x) {
  OpBuilder &b = k.getBuilder();
  auto type = cast<FloatType>(x.getType());
  double base = std::ldexp(1.5, type.getFPMantissaWidth() - 1);
  Value bits =
      arith::BitcastOp::create(b, k.getLoc(), b.getIntegerType(type.getWidth()),
                               k.add(x, k.constant(type, base)));
  return arith::TruncIOp::create(b, k.getLoc(), b.getI8Type(), bits);
}

/// The exponent by comparisons with its bounds, then the nearest value of it.
struct EncodeModel
    : KernelLoweringInterface::ExternalModel<EncodeModel, EncodeOp> {
  KernelSpace getKernelSpace(Operation *op) const {
    return flatOf(op->getOperand(0));
  }
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<EncodeOp>(operation);
    DynamicCode code(op.getNonnegative());
    OpBuilder &b = k.getBuilder();
    Value x = k.readInOrder(op.getInput());
    Type t = x.getType();
    auto constant = [&](double value) { return k.constant(t, value); };
    Value y = op.getNonnegative()
                  ? x
                  : math::AbsFOp::create(b, k.getLoc(), x).getResult();
    // `y * slope - size / 9` is 0 where f begins and `size` where it ends.
    auto slopeOf = [&](int e) {
      return DynamicCode::size(e) / (0.9 * code.scale(e));
    };
    Value slope = constant(slopeOf(code.first)),
          size = constant(DynamicCode::size(code.first));
    for (int e = code.first + 1; e <= code.last; ++e) {
      Value above = isAbove(k, y, code.bound(e));
      slope = k.select(above, constant(slopeOf(e)), slope);
      size = k.select(above, constant(DynamicCode::size(e)), size);
    }
    // A tie is nearer to zero. Between the exponents, f is the last.
    Value begin = fma(k, size, constant(8.0 / 9), constant(-1 - code.shift));
    Value index = math::CeilOp::create(b, k.getLoc(), fma(k, y, slope, begin));
    Value end = fma(k, size, constant(2), constant(-1 - code.shift));
    Value within = arith::CmpFOp::create(b, k.getLoc(),
                                         arith::CmpFPredicate::OLT, index, end);
    index = k.select(within, index, end);
    double smallest =
        code.scale(code.first) * (0.1 + 0.45 / DynamicCode::size(code.first));
    double most = 1 - 0.45 / DynamicCode::size(code.last);
    Value least = constant(0);
    if (!op.getNonnegative()) {
      Value negative = arith::CmpFOp::create(
          b, k.getLoc(), arith::CmpFPredicate::OLT, x, constant(0));
      least = k.select(negative, constant(1), constant(0));
    }
    index = k.select(isAbove(k, y, smallest / 2), index, least);
    // 1 has no negative.
    index = k.select(isAbove(k, x, (1 + most) / 2), constant(code.largest()),
                     index);
    if (!op.getNonnegative())
      index = math::CopySignOp::create(b, k.getLoc(), index, x);
    k.define(op.getOutput(), lowestByte(k, index));
    return success();
  }
};

/// `2^e + f + 1/2` as a float has `e` as its exponent and `(f + 1/2) / 2^e` as
/// its fraction.
struct DecodeModel
    : KernelLoweringInterface::ExternalModel<DecodeModel, DecodeOp> {
  KernelSpace getKernelSpace(Operation *op) const {
    return flatOf(op->getOperand(0));
  }
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<DecodeOp>(operation);
    bool nonnegative = op.getNonnegative();
    DynamicCode code(nonnegative);
    OpBuilder &b = k.getBuilder();
    Location loc = k.getLoc();
    Type f32 = b.getF32Type(), i32 = b.getI32Type();
    auto real = [&](double value) { return k.constant(f32, value); };
    auto integer = [&](int64_t value) { return k.constant(i32, value); };
    auto bitsOf = [&](Value x) -> Value {
      return arith::BitcastOp::create(b, loc, i32, x);
    };
    auto floatOf = [&](Value bits) -> Value {
      return arith::BitcastOp::create(b, loc, f32, bits);
    };
    auto both = [&](Value x, int64_t mask) -> Value {
      return arith::AndIOp::create(b, loc, x, integer(mask));
    };
    auto either = [&](Value x, Value y) -> Value {
      return arith::OrIOp::create(b, loc, x, y);
    };
    auto equals = [&](Value x, int64_t y) -> Value {
      return arith::CmpIOp::create(b, loc, arith::CmpIPredicate::eq, x,
                                   integer(y));
    };
    Value stored = k.readInOrder(op.getInput()), index, magnitude;
    if (nonnegative) {
      index = magnitude = arith::ExtUIOp::create(b, loc, i32, stored);
    } else {
      index = arith::ExtSIOp::create(b, loc, i32, stored);
      magnitude = arith::MaxSIOp::create(
          b, loc, index, arith::SubIOp::create(b, loc, integer(0), index));
    }
    Value place = k.add(k.cast(magnitude, f32), real(code.shift + 0.5));
    Value bits = bitsOf(place);
    // The exponents are told apart by the three lowest bits of theirs, which
    // begin with those of 2.
    constexpr int kFractionBits = 23;
    auto scaleOf = [&](int lowest) {
      int e = (lowest + 1) % 8;
      return real(e < code.first || e > code.last ? 0 : code.scale(e));
    };
    SmallVector<Value> scales;
    for (int lowest = 0; lowest < 8; ++lowest)
      scales.push_back(scaleOf(lowest));
    for (int bit = 0; bit < 3; ++bit) {
      Value isOff = equals(both(bits, int64_t(1) << (kFractionBits + bit)), 0);
      SmallVector<Value> left;
      for (size_t i = 0; i < scales.size(); i += 2)
        left.push_back(k.select(isOff, scales[i], scales[i + 1]));
      scales = left;
    }
    Value fraction = k.sub(
        floatOf(either(both(bits, (1 << kFractionBits) - 1), bitsOf(real(1)))),
        real(1));
    Value value = k.mul(scales.front(), fma(k, fraction, real(0.9), real(0.1)));
    value = k.select(equals(index, 0), real(0), value);
    if (!nonnegative)
      value = floatOf(either(bitsOf(value), both(index, INT32_MIN)));
    value =
        k.select(equals(index, nonnegative ? code.largest() : -code.largest()),
                 real(1), value);
    k.define(op.getOutput(), value);
    return success();
  }
};

struct SgdModel : KernelLoweringInterface::ExternalModel<SgdModel, SgdOp> {
  KernelSpace getKernelSpace(Operation *op) const {
    return flatOf(op->getOperand(0));
  }
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<SgdOp>(operation);
    Value p = k.readInOrder(op.getParameter());
    Value g = k.readInOrder(op.getGradient());
    Value lr = k.readScalar(op.getLr());
    Type t = p.getType();
    auto constant = [&](double value) { return k.constant(t, value); };
    if (op.getGradientScale())
      g = k.mul(g, k.readScalar(op.getGradientScale()));
    if (!op.getWeightDecay().isZero())
      g = k.add(g, k.mul(p, constant(op.getWeightDecay().convertToDouble())));
    if (op.getMomentumBuffer()) {
      double momentum = op.getMomentum().convertToDouble();
      Value buffer = k.readInOrder(op.getMomentumBuffer());
      Value step = k.readScalar(op.getStep());
      Value first = arith::CmpIOp::create(k.getBuilder(), k.getLoc(),
                                          arith::CmpIPredicate::eq, step,
                                          k.constant(step.getType(), 1));
      Value later =
          k.add(k.mul(buffer, constant(momentum)),
                k.mul(g, constant(1 - op.getDampening().convertToDouble())));
      Value updated = k.select(first, g, later);
      g = op.getNesterov() ? k.add(g, k.mul(updated, constant(momentum)))
                           : updated;
      if (op.getNewMomentumBuffer())
        k.define(op.getNewMomentumBuffer(), updated);
    }
    k.define(op.getNewParameter(), k.sub(p, k.mul(lr, g)));
    return success();
  }
};

/// A sum of squares per tensor, then one small kernel over the sums.
struct GlobalNormModel
    : KernelDecompositionInterface::ExternalModel<GlobalNormModel,
                                                  GlobalNormOp> {
  SmallVector<Value> decompose(Operation *operation, OpBuilder &b) const {
    auto op = cast<GlobalNormOp>(operation);
    Value total;
    for (Value gradient : op.getGradients()) {
      auto type = cast<RankedTensorType>(gradient.getType());
      Value wide = gradient;
      if (type.getElementType().getIntOrFloatBitWidth() < 32) {
        type = type.clone(b.getF32Type());
        wide = CastOp::create(b, op.getLoc(), type, gradient);
      }
      Value square = MulOp::create(b, op.getLoc(), wide, wide);
      Value sum = square;
      if (type.getRank() != 0)
        sum = ReduceOp::create(b, op.getLoc(), ReductionKind::Sum, square,
                               b.getDenseI64ArrayAttr(llvm::to_vector(
                                   llvm::seq<int64_t>(0, type.getRank()))));
      total =
          total ? AddOp::create(b, op.getLoc(), total, sum).getResult() : sum;
    }
    Value norm = SqrtOp::create(b, op.getLoc(), total);
    if (norm.getType() != op.getType())
      norm = CastOp::create(b, op.getLoc(), op.getType(), norm);
    return {norm};
  }
};

} // namespace

void cleave::attachOptimizerKernels(MLIRContext *context) {
  SeedOp::attachInterface<SeedModel>(*context);
  GradientOp::attachInterface<IdentityModel<GradientOp>>(*context);
  WrittenOp::attachInterface<IdentityModel<WrittenOp>>(*context);
  AdamWOp::attachInterface<AdamWModel>(*context);
  SgdOp::attachInterface<SgdModel>(*context);
  EncodeOp::attachInterface<EncodeModel>(*context);
  DecodeOp::attachInterface<DecodeModel>(*context);
  GlobalNormOp::attachInterface<GlobalNormModel>(*context);
}

void cleave::registerKernelModels(DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, GraphDialect *) {
    attachElementwiseKernels(context);
    attachRowKernels(context);
    attachReduceKernels(context);
    attachShapeKernels(context);
    attachIndexKernels(context);
    attachWindowKernels(context);
    attachRopeKernels(context);
    attachOptimizerKernels(context);
    context->loadDialect<exec::ExecDialect>();
  });
}
