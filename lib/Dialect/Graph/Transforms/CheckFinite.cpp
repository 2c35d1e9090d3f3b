//===- CheckFinite.cpp - A step stops at numbers that are not finite ------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CheckFinite.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/Formula.h"
#include <limits>

using namespace mlir;
using namespace cleave::graph;

Value cleave::graph::buildGlobalNorm(OpBuilder &builder, Location loc,
                                     ValueRange gradients) {
  Formula f{builder, loc};
  SmallVector<Value> terms(gradients);
  Type element = tensorTypeOf(terms.front()).getElementType();
  if (!llvm::all_of(terms, [&](Value gradient) {
        return tensorTypeOf(gradient).getElementType() == element;
      }))
    for (Value &gradient : terms)
      gradient = f.cast(gradient, builder.getF32Type());
  return GlobalNormOp::create(builder, loc, terms);
}

void cleave::graph::buildFiniteCheck(OpBuilder &builder, Location loc,
                                     Value size, StringRef message,
                                     bool skips) {
  Formula f{builder, loc};
  constexpr double infinity = std::numeric_limits<double>::infinity();
  // A comparison with NaN is false.
  CheckOp::create(builder, loc,
                  f.compare(Predicate::lt, size, f.scalar(size, infinity)),
                  message, skips);
}

void cleave::graph::buildFiniteChecks(OpBuilder &builder, func::FuncOp step,
                                      ValueRange gradients, bool skips) {
  Operation *returnOp = step.getBody().front().getTerminator();
  builder.setInsertionPoint(returnOp);
  Location loc = step.getLoc();
  for (auto [index, value] : llvm::enumerate(returnOp->getOperands()))
    if (index == 0 || step.getResultAttr(index, kLossAttr))
      buildFiniteCheck(builder, loc, AbsOp::create(builder, loc, value),
                       "the loss is not finite", skips);
  if (gradients.empty())
    return;
  // The norm of all gradients times zero: NaN where one is not finite, else 0.
  Formula f{builder, loc};
  SmallVector<Value> zeroed;
  for (Value gradient : gradients)
    zeroed.push_back(f.mul(gradient, f.scalar(gradient, 0.0)));
  Value zero = buildGlobalNorm(builder, loc, zeroed);
  CheckOp::create(builder, loc,
                  f.compare(Predicate::eq, zero, f.scalar(zero, 0.0)),
                  "a gradient is not finite", skips);
}
