//===- Shape.cpp - Costs of reductions and layout ops ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CostBuilder.h"

using namespace mlir;
using namespace cleave::graph;

OpCost ReduceOp::getCost() {
  Saved saved;
  if (getKind() != ReductionKind::Sum)
    saved = {{0}, {0}};
  return streamingCost(getOperation(), WorkClass::RowWise,
                       elementsOf(getInput()), saved);
}

OpCost CumulativeSumOp::getCost() {
  return streamingCost(getOperation(), WorkClass::RowWise,
                       elementsOf(getInput()));
}

OpCost LinearScanOp::getCost() {
  return streamingCost(getOperation(), WorkClass::RowWise,
                       2 * elementsOf(getInput()), {{0}, {0}});
}

OpCost TopKOp::getCost() {
  // Few are taken one after another, many in five passes.
  return streamingCost(getOperation(), WorkClass::RowWise,
                       elementsOf(getInput()) * std::min<int64_t>(getK(), 8),
                       {{}, {1}});
}

#define VIEW(OP)                                                               \
  OpCost OP::getCost() {                                                       \
    return streamingCost(getOperation(), WorkClass::View, 0);                  \
  }
VIEW(ReshapeOp)
VIEW(TransposeOp)
VIEW(BroadcastOp)
VIEW(SliceOp)
#undef VIEW

#define COPY(OP)                                                               \
  OpCost OP::getCost() {                                                       \
    return streamingCost(getOperation(), WorkClass::ElementWise, 0);           \
  }
COPY(PadOp)
COPY(ConcatOp)
COPY(PatchesOp)
#undef COPY

OpCost PatchesGradOp::getCost() {
  return streamingCost(getOperation(), WorkClass::Gather,
                       elementsOf(getGradient()));
}

OpCost GatherOp::getCost() {
  OpCost cost = streamingCost(getOperation(), WorkClass::Gather, 0, {{1}, {}});
  // Of the input, only the chosen slices are read.
  cost.bytesRead = cost.bytesWritten + bytesOf(getIndices());
  return cost;
}

OpCost ScatterAddOp::getCost() {
  return streamingCost(getOperation(), WorkClass::Gather,
                       elementsOf(getUpdates()), {{1}, {}});
}

OpCost OneHotOp::getCost() {
  return streamingCost(getOperation(), WorkClass::ElementWise,
                       elementsOf(getOutput()));
}

OpCost PackBitsOp::getCost() {
  return streamingCost(getOperation(), WorkClass::ElementWise,
                       2 * elementsOf(getInput()));
}

OpCost UnpackBitsOp::getCost() {
  return streamingCost(getOperation(), WorkClass::ElementWise,
                       2 * elementsOf(getOutput()));
}
