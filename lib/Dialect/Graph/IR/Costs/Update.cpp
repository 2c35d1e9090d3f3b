//===- Update.cpp - Costs of the ops of a training step -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CostBuilder.h"

using namespace mlir;
using namespace cleave::graph;

OpCost SeedOp::getCost() {
  return streamingCost(getOperation(), WorkClass::View, 0);
}

OpCost GradientOp::getCost() {
  return streamingCost(getOperation(), WorkClass::View, 0);
}

OpCost WrittenOp::getCost() {
  return streamingCost(getOperation(), WorkClass::View, 0);
}

OpCost CheckOp::getCost() {
  return streamingCost(getOperation(), WorkClass::View, 0);
}

OpCost GlobalNormOp::getCost() {
  int64_t elements = 0;
  for (Value gradient : getGradients())
    elements += elementsOf(gradient);
  return streamingCost(getOperation(), WorkClass::RowWise, 2 * elements);
}

OpCost AdamWOp::getCost() {
  return streamingCost(getOperation(), WorkClass::ElementWise,
                       14 * elementsOf(getParameter()));
}

OpCost SgdOp::getCost() {
  return streamingCost(getOperation(), WorkClass::ElementWise,
                       7 * elementsOf(getParameter()));
}

OpCost EncodeOp::getCost() {
  return streamingCost(getOperation(), WorkClass::ElementWise,
                       30 * elementsOf(getInput()));
}

OpCost DecodeOp::getCost() {
  return streamingCost(getOperation(), WorkClass::ElementWise,
                       25 * elementsOf(getInput()));
}

OpCost OrthonormalizeOp::getCost() {
  // Of a matrix 2nr^2 - 2/3 r^3 each, by LAPACK's counts of geqrf and orgqr.
  auto shape = cast<RankedTensorType>(getInput().getType()).getShape();
  int64_t rows = shape[shape.size() - 2], columns = shape.back();
  return streamingCost(getOperation(), WorkClass::RowWise,
                       elementsOf(getInput()) * 4 * columns -
                           elementsOf(getInput()) / std::max<int64_t>(rows, 1) *
                               columns * columns * 4 / 3);
}
