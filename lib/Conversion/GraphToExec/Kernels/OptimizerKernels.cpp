//===- OptimizerKernels.cpp - Scalar code of the optimizer ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "KernelModels.h"
#include "mlir/Dialect/Arith/IR/Arith.h"

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
