//===- RemoveRandomness.cpp - Random ops at their expected value ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave::graph;

void DropoutOp::removeRandomness(RewriterBase &rewriter) {
  rewriter.replaceOp(*this, getInput());
}

void UniformOp::removeRandomness(RewriterBase &rewriter) {
  RankedTensorType type = getType();
  auto mean = rewriter.getFloatAttr(type.getElementType(), 0.5);
  rewriter.replaceOpWithNewOp<ConstantOp>(*this,
                                          DenseElementsAttr::get(type, mean));
}
