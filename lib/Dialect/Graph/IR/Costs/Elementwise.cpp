//===- Elementwise.cpp - Costs of element-wise ops ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CostBuilder.h"

using namespace mlir;
using namespace cleave::graph;

static OpCost elementwise(Operation *op, int64_t flopsPerElement,
                          Saved saved = {}) {
  return streamingCost(op, WorkClass::ElementWise,
                       flopsPerElement * elementsOf(op->getResult(0)), saved);
}

#define ELEMENTWISE(OP, FLOPS, ...)                                            \
  OpCost OP::getCost() {                                                       \
    return elementwise(getOperation(), FLOPS, Saved{__VA_ARGS__});             \
  }

// Operations per element (a transcendental function counts as the arithmetic
// of its usual approximation); then what the gradient reads.
ELEMENTWISE(NegOp, 1)
ELEMENTWISE(AbsOp, 1, {0})
ELEMENTWISE(ExpOp, 10, {}, {0})
ELEMENTWISE(Expm1Op, 12, {0})
ELEMENTWISE(LogOp, 12, {0})
ELEMENTWISE(Log1pOp, 16, {0})
ELEMENTWISE(SqrtOp, 1, {}, {0})
ELEMENTWISE(RsqrtOp, 2, {}, {0})
ELEMENTWISE(SinOp, 12, {0})
ELEMENTWISE(CosOp, 12, {0})
ELEMENTWISE(TanhOp, 14, {}, {0})
ELEMENTWISE(ErfOp, 14, {0})
ELEMENTWISE(SigmoidOp, 12, {}, {0})
ELEMENTWISE(SiluOp, 13, {0})
ELEMENTWISE(ReluOp, 1, {0})
ELEMENTWISE(FloorOp, 1)
ELEMENTWISE(StopGradientOp, 0)
ELEMENTWISE(NotOp, 1)
ELEMENTWISE(GeluOp, 20, {0})
ELEMENTWISE(GeluGradOp, 30)
ELEMENTWISE(CastOp, 0)
ELEMENTWISE(AddOp, 1)
ELEMENTWISE(SubOp, 1)
ELEMENTWISE(MulOp, 1, {0, 1})
ELEMENTWISE(DivOp, 1, {0, 1})
ELEMENTWISE(RemOp, 20, {0, 1}, {0})
ELEMENTWISE(MaximumOp, 1, {0, 1})
ELEMENTWISE(MinimumOp, 1, {0, 1})
ELEMENTWISE(PowOp, 24, {0, 1})
ELEMENTWISE(AndOp, 1)
ELEMENTWISE(OrOp, 1)
ELEMENTWISE(CompareOp, 1)
ELEMENTWISE(SelectOp, 1, {0})
#undef ELEMENTWISE

OpCost ConstantOp::getCost() {
  return streamingCost(getOperation(), WorkClass::View, 0);
}

OpCost IotaOp::getCost() { return elementwise(getOperation(), 1); }

OpCost UniformOp::getCost() { return elementwise(getOperation(), 20); }

OpCost DropoutOp::getCost() {
  // Philox: ten rounds for four draws; the gradient draws again.
  return elementwise(getOperation(), 20, Saved{{1}, {}});
}
