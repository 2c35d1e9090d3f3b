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

/// Of codes `k` of `2^e + f`, by comparisons with the bounds of `e`: what
/// `pick` gives for `e`.
Value pickByBounds(KernelBuilder &k, Value x, int first, int last,
                   function_ref<double(int)> bound,
                   function_ref<double(int)> pick) {
  Type t = x.getType();
  Value result = k.constant(t, pick(first));
  for (int e = first + 1; e <= last; ++e) {
    Value above = arith::CmpFOp::create(k.getBuilder(), k.getLoc(),
                                        arith::CmpFPredicate::OGT, x,
                                        k.constant(t, bound(e)));
    result = k.select(above, k.constant(t, pick(e)), result);
  }
  return result;
}

/// The dynamic code: exponents `e` from `first` to `last`, codes `k + shift`.
struct DynamicCode {
  explicit DynamicCode(bool nonnegative)
      : first(nonnegative ? 1 : 0), last(nonnegative ? 7 : 6),
        shift(nonnegative ? 1 : 0) {}
  int first, last, shift;

  double scale(int e) const { return std::pow(10.0, e - last); }
  static double size(int e) { return static_cast<double>(1 << e); }
  /// The middle of the largest value of `e - 1` and the smallest one of `e`.
  double bound(int e) const { return scale(e - 1) * (1 + 0.9 / size(e - 1)); }
};

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
    auto above = [&](Value a, Value bound) -> Value {
      return arith::CmpFOp::create(b, k.getLoc(), arith::CmpFPredicate::OGT, a,
                                   bound);
    };
    Value negative = arith::CmpFOp::create(
        b, k.getLoc(), arith::CmpFPredicate::OLT, x, constant(0));
    Value y = op.getNonnegative() ? x : k.max(x, k.neg(x));
    auto pick = [&](auto value) {
      return pickByBounds(
          k, y, code.first, code.last, [&](int e) { return code.bound(e); },
          value);
    };
    Value size = pick([](int e) { return DynamicCode::size(e); });
    Value inverse = pick([&](int e) { return 1 / code.scale(e); });
    // f, the nearest of the values of e; a tie is nearer to zero.
    Value place =
        k.mul(k.mul(k.sub(k.mul(y, inverse), constant(0.1)), constant(1 / 0.9)),
              size);
    Value f = k.sub(k.neg(math::FloorOp::create(b, k.getLoc(), k.neg(place))),
                    constant(1));
    f = k.max(constant(0), k.min(f, k.sub(size, constant(1))));
    Value index = k.sub(k.add(size, f), constant(code.shift));
    double smallest =
        code.scale(code.first) * (0.1 + 0.45 / DynamicCode::size(code.first));
    Value isZero = arith::CmpFOp::create(
        b, k.getLoc(), arith::CmpFPredicate::OLE, y, constant(smallest / 2));
    double largest = 1 - 0.45 / DynamicCode::size(code.last);
    if (op.getNonnegative()) {
      index = k.select(isZero, constant(0), index);
      index =
          k.select(above(y, constant((1 + largest) / 2)), constant(255), index);
    } else {
      Value isOne = above(x, constant((1 + largest) / 2));
      index = k.select(isOne, constant(128), index);
      index =
          k.select(isZero, k.select(negative, constant(1), constant(0)), index);
      index = k.select(negative, k.neg(index), index);
    }
    // As 8 bits, with a sign.
    index = k.select(above(index, constant(127)), k.sub(index, constant(256)),
                     index);
    k.define(op.getOutput(), k.cast(index, b.getI8Type()));
    return success();
  }
};

struct DecodeModel
    : KernelLoweringInterface::ExternalModel<DecodeModel, DecodeOp> {
  KernelSpace getKernelSpace(Operation *op) const {
    return flatOf(op->getOperand(0));
  }
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<DecodeOp>(operation);
    DynamicCode code(op.getNonnegative());
    OpBuilder &b = k.getBuilder();
    Type t = b.getF32Type();
    auto constant = [&](double value) { return k.constant(t, value); };
    auto compare = [&](arith::CmpFPredicate predicate, Value a,
                       double value) -> Value {
      return arith::CmpFOp::create(b, k.getLoc(), predicate, a,
                                   constant(value));
    };
    Value stored = k.cast(k.readInOrder(op.getInput()), t);
    bool nonnegative = op.getNonnegative();
    Value wraps = nonnegative
                      ? compare(arith::CmpFPredicate::OLT, stored, 0)
                      : compare(arith::CmpFPredicate::OLT, stored, -127.5);
    Value index = k.select(wraps, k.add(stored, constant(256)), stored);
    Value magnitude = k.max(index, k.neg(index));
    Value whole = k.add(magnitude, constant(code.shift));
    auto pick = [&](auto value) {
      return pickByBounds(
          k, whole, code.first, code.last,
          [](int e) { return DynamicCode::size(e) - 0.5; }, value);
    };
    Value size = pick([](int e) { return DynamicCode::size(e); });
    Value scale = pick([&](int e) { return code.scale(e); });
    Value f = k.add(k.sub(whole, size), constant(0.5));
    Value value = k.mul(
        scale, k.add(constant(0.1), k.mul(constant(0.9), k.div(f, size))));
    double last = nonnegative ? 255 : 128;
    value = k.select(compare(arith::CmpFPredicate::OGT, magnitude, last - 0.5),
                     constant(1), value);
    value = k.select(compare(arith::CmpFPredicate::OLT, magnitude, 0.5),
                     constant(0), value);
    value = k.select(compare(arith::CmpFPredicate::OLT, index, 0), k.neg(value),
                     value);
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
        sum = ReduceOp::create(b, op.getLoc(), ReductionKind::sum, square,
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
