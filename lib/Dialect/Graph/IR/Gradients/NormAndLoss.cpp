//===- NormAndLoss.cpp - Gradients of norms, softmax and losses -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Gradients.h"

using namespace mlir;
using namespace cleave::graph;

/// The dimensions before the last.
static SmallVector<int64_t> leadingDims(Value value) {
  return llvm::to_vector(
      llvm::seq<int64_t>(0, tensorTypeOf(value).getRank() - 1));
}

/// Repeats one value per row along the last dimension of `like`, in its
/// element type.
static Value perRow(Formula &f, Value rows, Value like) {
  RankedTensorType type = tensorTypeOf(like);
  SmallVector<int64_t> shape(type.getShape());
  shape.back() = 1;
  return f.reshape(f.cast(rows, type.getElementType()), shape);
}

/// Adds `value` to `sum`, which may be null.
static void accumulate(Formula &f, Value &sum, Value value) {
  sum = sum ? f.add(sum, value) : value;
}

CLEAVE_GRADIENTS(LayerNormOp) {
  Value g = resultGradients[0];
  Formula f{builder, getLoc()};
  Value x = getInput();
  if (needed[0]) {
    Value &gradient = operandGradients[0];
    double size = getInput().getType().getShape().back();
    if (g)
      gradient = LayerNormGradOp::create(builder, getLoc(), g, x, getMean(),
                                         getRstd(), getWeight());
    // The statistics are results too: d mean / dx = 1 / n and
    // d rstd / dx = -rstd^3 (x - mean) / n.
    if (Value ofMean = resultGradients[1])
      accumulate(
          f, gradient,
          f.broadcast(perRow(f, f.mul(ofMean, f.scalar(ofMean, 1 / size)), x),
                      getInput().getType().getShape()));
    if (Value ofRstd = resultGradients[2]) {
      Value cube = f.mul(getRstd(), f.mul(getRstd(), getRstd()));
      Value scale = f.mul(f.mul(ofRstd, cube), f.scalar(ofRstd, -1 / size));
      accumulate(f, gradient,
                 f.mul(f.sub(x, perRow(f, getMean(), x)), perRow(f, scale, x)));
    }
  }
  if (!g)
    return success();
  if (getWeight() && needed[1])
    operandGradients[1] =
        f.cast(LayerNormWeightGradOp::create(builder, getLoc(), g, x, getMean(),
                                             getRstd()),
               getWeight().getType().getElementType());
  if (getBias()) {
    unsigned index = getBiasMutable().begin()->getOperandNumber();
    if (needed[index])
      operandGradients[index] = f.sum(
          f.cast(g, getBias().getType().getElementType()), leadingDims(x));
  }
  return success();
}

CLEAVE_GRADIENTS(RmsNormOp) {
  Value g = resultGradients[0];
  Formula f{builder, getLoc()};
  Value x = getInput();
  if (needed[0]) {
    Value &gradient = operandGradients[0];
    if (g)
      gradient = RmsNormGradOp::create(builder, getLoc(), g, x, getRstd(),
                                       getWeight());
    // d rstd / dx = -rstd^3 x / n.
    if (Value ofRstd = resultGradients[1]) {
      double size = getInput().getType().getShape().back();
      Value cube = f.mul(getRstd(), f.mul(getRstd(), getRstd()));
      Value scale = f.mul(f.mul(ofRstd, cube), f.scalar(ofRstd, -1 / size));
      accumulate(f, gradient, f.mul(x, perRow(f, scale, x)));
    }
  }
  if (g && getWeight() && needed[1])
    operandGradients[1] =
        f.cast(RmsNormWeightGradOp::create(builder, getLoc(), g, x, getRstd()),
               getWeight().getType().getElementType());
  return success();
}

CLEAVE_GRADIENTS(SoftmaxOp) {
  if (resultGradients[0] && needed[0])
    operandGradients[0] = SoftmaxGradOp::create(
        builder, getLoc(), resultGradients[0], getOutput(), getLog());
  return success();
}

CLEAVE_GRADIENTS(CrossEntropyOp) {
  if (!needed[0])
    return success();
  Formula f{builder, getLoc()};
  if (resultGradients[0])
    operandGradients[0] = CrossEntropyGradOp::create(
        builder, getLoc(), resultGradients[0], getLogits(), getTargets(),
        getLse(), getIgnoreIndexAttr(), getLabelSmoothingAttr());
  // d lse / d logits = softmax(logits).
  if (Value ofLse = resultGradients[1])
    accumulate(f, operandGradients[0],
               f.mul(SoftmaxOp::create(builder, getLoc(), getLogits(),
                                       /*log=*/false),
                     perRow(f, ofLse, getLogits())));
  return success();
}

CLEAVE_GRADIENTS(HeadLossOp) {
  for (Value ofGradient : resultGradients.drop_front())
    if (ofGradient)
      return emitOpError("has no gradient through its gradients");
  if (!resultGradients[0])
    return success();
  Formula f{builder, getLoc()};
  auto gradients = HeadLossOp::create(
      builder, getLoc(), getInput(), getWeight(), getBias(), getTargets(),
      resultGradients[0], getIgnoreIndexAttr(), getLabelSmoothingAttr(),
      getChunkRowsAttr(), getNarrowLogitsAttr());
  // Input, weight, and the bias where there is one, come first.
  for (unsigned i = 0; i + 1 < gradients->getNumResults(); ++i)
    if (needed[i])
      operandGradients[i] =
          f.cast(gradients->getResult(i + 1),
                 tensorTypeOf(getOperand(i)).getElementType());
  return success();
}

CLEAVE_GRADIENTS(RopeOp) {
  if (needed[1] || needed[2])
    return emitOpError("has no gradient for its tables of cosines and sines, "
                       "which here depend on a parameter");
  if (resultGradients[0] && needed[0])
    operandGradients[0] =
        RopeOp::create(builder, getLoc(), resultGradients[0], getCos(),
                       getSin(), getInterleaved(), !getAdjoint());
  return success();
}

CLEAVE_NO_GRADIENT(LayerNormGradOp)
CLEAVE_NO_GRADIENT(LayerNormWeightGradOp)
CLEAVE_NO_GRADIENT(RmsNormGradOp)
CLEAVE_NO_GRADIENT(RmsNormWeightGradOp)
CLEAVE_NO_GRADIENT(SoftmaxGradOp)
CLEAVE_NO_GRADIENT(CrossEntropyGradOp)
