//===- RopeKernels.cpp - Scalar code of rotary embedding ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "KernelModels.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

namespace {

/// Runs over pairs: the columns are half of the last dimension.
struct RopeModel : KernelLoweringInterface::ExternalModel<RopeModel, RopeOp> {
  KernelSpace getKernelSpace(Operation *operation) const {
    auto type = tensorTypeOf(cast<RopeOp>(operation).getInput());
    int64_t half = type.getShape().back() / 2;
    return KernelSpace::fixed(type.getNumElements() / 2 / half, half);
  }

  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    auto op = cast<RopeOp>(operation);
    auto type = tensorTypeOf(op.getInput());
    int64_t rank = type.getRank(), half = type.getShape().back() / 2;
    SmallVector<int64_t> loops(type.getShape()), steps(rank, 1);
    loops.back() = half;
    steps.back() = op.getInterleaved() ? 2 : 1;
    // The access of element `which` of each pair, in a tensor broadcast to it.
    auto place = [&](Value tensor, int64_t which) {
      auto t = tensorTypeOf(tensor);
      SmallVector<int64_t> dims, begin(t.getRank(), 0);
      for (int64_t i = 0; i < rank; ++i) {
        int64_t d = i - (rank - t.getRank());
        dims.push_back(
            d < 0 || (t.getDimSize(d) == 1 && type.getDimSize(i) != 1) ? -1
                                                                       : d);
      }
      if (t.getRank() && dims.back() >= 0)
        begin.back() = which * (op.getInterleaved() ? 1 : half);
      return Access::get(t, loops, dims, steps, begin);
    };
    auto readBoth = [&](Value tensor) {
      return std::pair(k.read(tensor, place(tensor, 0)),
                       k.read(tensor, place(tensor, 1)));
    };
    auto [x1, x2] = readBoth(op.getInput());
    auto [c1, c2] = readBoth(op.getCos());
    auto [s1, s2] = readBoth(op.getSin());
    Value y1, y2;
    if (op.getAdjoint()) {
      y1 = k.add(k.mul(x1, c1), k.mul(x2, s2));
      y2 = k.sub(k.mul(x2, c2), k.mul(x1, s1));
    } else {
      y1 = k.sub(k.mul(x1, c1), k.mul(x2, s1));
      y2 = k.add(k.mul(x2, c2), k.mul(x1, s2));
    }
    k.defineAt(op.getOutput(), y1, place(op.getOutput(), 0));
    k.defineAt(op.getOutput(), y2, place(op.getOutput(), 1));
    return success();
  }
};

} // namespace

void cleave::attachRopeKernels(MLIRContext *context) {
  RopeOp::attachInterface<RopeModel>(*context);
}
