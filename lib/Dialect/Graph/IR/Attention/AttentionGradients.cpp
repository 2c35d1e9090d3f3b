//===- AttentionGradients.cpp - Gradients of attention -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "../Gradients/Gradients.h"

using namespace mlir;
using namespace cleave::graph;

CLEAVE_GRADIENTS(AttentionOp) {
  if (resultGradients[1])
    return emitOpError("has no gradient through its log-sum-exp");
  Value g = resultGradients[0];
  if (!g)
    return success();
  if (getOnto())
    return emitOpError("has no gradient through what it adds onto");
  // Query, key and value come first; the optional bias follows them.
  if (needed[0] || needed[1] || needed[2]) {
    auto gradient = AttentionGradOp::create(
        builder, getLoc(), g, getQuery(), getKey(), getValue(), getOutput(),
        getLse(), getBias(), getMask(), getSegments(), getRng(), getOrigin(),
        getKeySegments(), getQueryStarts(), getKeyStarts(), getScaleAttr(),
        getCausalAttr(), getWindowAttr(), getDropoutAttr(), getDropoutIdAttr(),
        getGlobalShapeAttr(), getBlocksAttr(), getStepAttr(),
        getResultElementAttr());
    for (unsigned i = 0; i < 3; ++i)
      if (needed[i])
        operandGradients[i] = gradient.getResult(i);
  }
  if (getBias() && needed[3])
    operandGradients[3] = AttentionBiasGradOp::create(
        builder, getLoc(), g, getQuery(), getKey(), getValue(), getOutput(),
        getLse(), getBias(), getMask(), getSegments(), getRng(), getOrigin(),
        getKeySegments(), getQueryStarts(), getKeyStarts(), getScaleAttr(),
        getCausalAttr(), getWindowAttr(), getDropoutAttr(), getDropoutIdAttr(),
        getGlobalShapeAttr(), getBlocksAttr(), getStepAttr());
  return success();
}

CLEAVE_NO_GRADIENT(AttentionGradOp)
CLEAVE_NO_GRADIENT(AttentionBiasGradOp)
