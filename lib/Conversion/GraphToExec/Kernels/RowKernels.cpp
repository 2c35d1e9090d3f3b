//===- RowKernels.cpp - Scalar code of ops along the last dimension -------===//
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

/// The rows and columns of a tensor: all leading dimensions, the last one.
KernelSpace rowsOf(Value value) {
  auto type = cast<RankedTensorType>(value.getType());
  int64_t cols = type.getRank() ? type.getShape().back() : 1;
  return KernelSpace::fixed(type.getNumElements() / cols, cols);
}

ArrayRef<int64_t> shapeOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getShape();
}

/// sum over the row / columns.
Value rowMean(KernelBuilder &k, Value x) {
  Value sum = k.reduce(ReductionKind::Sum, x);
  return k.div(sum, k.constant(x.getType(), k.getCols()));
}

/// 1 / sqrt(x + epsilon).
Value inverseRoot(KernelBuilder &k, Value x, APFloat epsilon) {
  Type t = x.getType();
  Value shifted = k.add(x, k.constant(t, epsilon.convertToDouble()));
  return k.div(k.constant(t, 1), k.sqrt(shifted));
}

//===----------------------------------------------------------------------===//
// Norms
//===----------------------------------------------------------------------===//

LogicalResult emit(LayerNormOp op, KernelBuilder &k) {
  Value x = k.readInOrder(op.getInput());
  Value mean = rowMean(k, x);
  Value centered = k.sub(x, mean);
  Value variance = rowMean(k, k.mul(centered, centered));
  Value rstd = inverseRoot(k, variance, op.getEpsilon());
  Value y = k.mul(centered, rstd);
  if (op.getWeight())
    y = k.mul(y, k.readBroadcast(op.getWeight(), shapeOf(op.getInput())));
  if (op.getBias())
    y = k.add(y, k.readBroadcast(op.getBias(), shapeOf(op.getInput())));
  k.define(op.getOutput(), y);
  k.define(op.getMean(), mean, Level::Row);
  k.define(op.getRstd(), rstd, Level::Row);
  return success();
}

LogicalResult emit(LayerNormGradOp op, KernelBuilder &k) {
  Value g = k.readInOrder(op.getGradient());
  Value x = k.readInOrder(op.getInput());
  Value mean = k.readInOrder(op.getMean(), Level::Row);
  Value rstd = k.readInOrder(op.getRstd(), Level::Row);
  Value normal = k.mul(k.sub(x, mean), rstd);
  if (op.getWeight())
    g = k.mul(g, k.readBroadcast(op.getWeight(), shapeOf(op.getInput())));
  Value meanG = rowMean(k, g);
  Value meanGN = rowMean(k, k.mul(g, normal));
  Value inner = k.sub(k.sub(g, meanG), k.mul(normal, meanGN));
  k.define(op.getOutput(), k.mul(rstd, inner));
  return success();
}

LogicalResult emit(LayerNormWeightGradOp op, KernelBuilder &k) {
  Value g = k.readInOrder(op.getGradient());
  Value x = k.readInOrder(op.getInput());
  Value mean = k.readInOrder(op.getMean(), Level::Row);
  Value rstd = k.readInOrder(op.getRstd(), Level::Row);
  Value normal = k.mul(k.sub(x, mean), rstd);
  k.accumulate(ReductionKind::Sum, k.mul(g, normal), op.getOutput());
  return success();
}

LogicalResult emit(RmsNormOp op, KernelBuilder &k) {
  Value x = k.readInOrder(op.getInput());
  Value rstd = inverseRoot(k, rowMean(k, k.mul(x, x)), op.getEpsilon());
  Value y = k.mul(x, rstd);
  if (op.getWeight())
    y = k.mul(y, k.readBroadcast(op.getWeight(), shapeOf(op.getInput())));
  k.define(op.getOutput(), y);
  k.define(op.getRstd(), rstd, Level::Row);
  return success();
}

LogicalResult emit(RmsNormGradOp op, KernelBuilder &k) {
  Value g = k.readInOrder(op.getGradient());
  Value x = k.readInOrder(op.getInput());
  Value rstd = k.readInOrder(op.getRstd(), Level::Row);
  Value normal = k.mul(x, rstd);
  if (op.getWeight())
    g = k.mul(g, k.readBroadcast(op.getWeight(), shapeOf(op.getInput())));
  Value meanGN = rowMean(k, k.mul(g, normal));
  k.define(op.getOutput(), k.mul(rstd, k.sub(g, k.mul(normal, meanGN))));
  return success();
}

LogicalResult emit(RmsNormWeightGradOp op, KernelBuilder &k) {
  Value g = k.readInOrder(op.getGradient());
  Value x = k.readInOrder(op.getInput());
  Value rstd = k.readInOrder(op.getRstd(), Level::Row);
  k.accumulate(ReductionKind::Sum, k.mul(g, k.mul(x, rstd)), op.getOutput());
  return success();
}

//===----------------------------------------------------------------------===//
// Softmax and cross entropy
//===----------------------------------------------------------------------===//

LogicalResult emit(SoftmaxOp op, KernelBuilder &k) {
  Value x = k.readInOrder(op.getInput());
  Value shifted = k.sub(x, k.reduce(ReductionKind::Max, x));
  Value e = k.exp(shifted);
  Value sum = k.reduce(ReductionKind::Sum, e);
  if (op.getLog())
    k.define(op.getOutput(), k.sub(shifted, k.log(sum)));
  else
    k.define(op.getOutput(), k.mul(e, k.div(k.constant(x.getType(), 1), sum)));
  return success();
}

LogicalResult emit(SoftmaxGradOp op, KernelBuilder &k) {
  Value g = k.readInOrder(op.getGradient());
  Value y = k.readInOrder(op.getOutput());
  if (op.getLog()) {
    Value sum = k.reduce(ReductionKind::Sum, g);
    k.define(op.getInputGradient(), k.sub(g, k.mul(k.exp(y), sum)));
    return success();
  }
  Value sum = k.reduce(ReductionKind::Sum, k.mul(g, y));
  k.define(op.getInputGradient(), k.mul(y, k.sub(g, sum)));
  return success();
}

/// The row's target, and whether it is counted.
std::pair<Value, Value> readTarget(KernelBuilder &k, Value targets,
                                   int64_t ignored) {
  OpBuilder &b = k.getBuilder();
  Value target = k.cast(k.readInOrder(targets, Level::Row), b.getI64Type());
  Value ignore =
      arith::ConstantOp::create(b, k.getLoc(), b.getI64IntegerAttr(ignored));
  Value valid = arith::CmpIOp::create(b, k.getLoc(), arith::CmpIPredicate::ne,
                                      target, ignore);
  return {target, valid};
}

LogicalResult emit(CrossEntropyOp op, KernelBuilder &k) {
  auto type = cast<RankedTensorType>(op.getLogits().getType());
  auto [target, valid] = readTarget(k, op.getTargets(), op.getIgnoreIndex());
  Value x = k.readInOrder(op.getLogits());
  Type t = x.getType();
  Value max = k.reduce(ReductionKind::Max, x);
  Value shifted = k.sub(x, max);
  // Subtracts first: the loss is then accurate for large logits too.
  Value logSum = k.log(k.reduce(ReductionKind::Sum, k.exp(shifted)));

  // The index of the row's first element, plus the target.
  SmallVector<int64_t> lead(type.getShape().drop_back());
  SmallVector<int64_t> dims =
      llvm::to_vector(llvm::seq<int64_t>(0, type.getRank() - 1));
  int64_t step = exec::getLayout(type).strides.back();
  Value chosen = k.readIndexed(op.getLogits(), Access::get(type, lead, dims),
                               target, step, valid, Level::Row);
  Value loss = k.sub(logSum, k.sub(chosen, max));
  double smoothing = op.getLabelSmoothing().convertToDouble();
  if (smoothing != 0) {
    Value spread = k.sub(logSum, rowMean(k, shifted));
    loss = k.add(k.mul(loss, k.constant(t, 1 - smoothing)),
                 k.mul(spread, k.constant(t, smoothing)));
  }
  k.define(op.getLoss(), k.select(valid, loss, k.constant(t, 0)), Level::Row);
  k.define(op.getLse(), k.add(max, logSum), Level::Row);
  return success();
}

LogicalResult emit(CrossEntropyGradOp op, KernelBuilder &k) {
  OpBuilder &b = k.getBuilder();
  auto type = cast<RankedTensorType>(op.getLogits().getType());
  auto [target, valid] = readTarget(k, op.getTargets(), op.getIgnoreIndex());
  Value x = k.readInOrder(op.getLogits());
  Type t = x.getType();
  Value lse = k.readInOrder(op.getLse(), Level::Row);
  Value g = k.readInOrder(op.getGradient(), Level::Row);
  g = k.select(valid, g, k.constant(t, 0));
  // The rounding error of a large log-sum-exp is one factor for the whole row.
  Value p = k.exp(k.sub(x, lse));
  p = k.mul(p, k.div(k.constant(t, 1), k.reduce(ReductionKind::Sum, p)));
  double smoothing = op.getLabelSmoothing().convertToDouble();
  Value column = k.index(type.getShape(), type.getRank() - 1);
  Value hit = arith::CmpIOp::create(b, k.getLoc(), arith::CmpIPredicate::eq,
                                    column, target);
  Value uniform = k.constant(t, smoothing / k.getCols());
  Value wanted = k.select(
      hit, k.constant(t, 1 - smoothing + smoothing / k.getCols()), uniform);
  k.define(op.getOutput(), k.mul(g, k.sub(p, wanted)));
  return success();
}

//===----------------------------------------------------------------------===//
// External models
//===----------------------------------------------------------------------===//

/// An op over the rows of its first operand.
template <typename OpTy>
struct RowModel : KernelLoweringInterface::ExternalModel<RowModel<OpTy>, OpTy> {
  KernelSpace getKernelSpace(Operation *op) const {
    return rowsOf(op->getOperand(0));
  }
  LogicalResult emitKernel(Operation *op, KernelBuilder &k) const {
    return emit(cast<OpTy>(op), k);
  }
};

/// The same for an op whose first operand is the gradient of the rows' losses.
struct CrossEntropyGradModel
    : KernelLoweringInterface::ExternalModel<CrossEntropyGradModel,
                                             CrossEntropyGradOp> {
  KernelSpace getKernelSpace(Operation *op) const {
    return rowsOf(cast<CrossEntropyGradOp>(op).getLogits());
  }
  LogicalResult emitKernel(Operation *op, KernelBuilder &k) const {
    return emit(cast<CrossEntropyGradOp>(op), k);
  }
};

template <typename... Ops> void attachRows(MLIRContext *context) {
  (Ops::template attachInterface<RowModel<Ops>>(*context), ...);
}

} // namespace

void cleave::attachRowKernels(MLIRContext *context) {
  attachRows<LayerNormOp, LayerNormGradOp, LayerNormWeightGradOp, RmsNormOp,
             RmsNormGradOp, RmsNormWeightGradOp, SoftmaxOp, SoftmaxGradOp,
             CrossEntropyOp>(context);
  CrossEntropyGradOp::attachInterface<CrossEntropyGradModel>(*context);
}
