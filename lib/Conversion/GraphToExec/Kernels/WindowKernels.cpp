//===- WindowKernels.cpp - Scalar code of windows of images ---------------===//
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

struct PatchesModel : FlatModel<PatchesModel, PatchesOp> {
  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    using P = arith::CmpIPredicate;
    auto op = cast<PatchesOp>(operation);
    auto type = tensorTypeOf(op.getInput());
    auto strides = exec::getLayout(type).strides;
    // Loops: n, oh, ow, c, kh, kw.
    auto shape = tensorTypeOf(op.getOutput()).getShape();
    Access access = Access::get(type, shape, {0, -1, -1, 1, -1, -1});
    Value where;
    for (int64_t i = 0; i < 2; ++i) {
      int64_t stride = op.getStride()[i], dilation = op.getDilation()[i];
      access.memory[1 + i] = stride * strides[2 + i];
      access.memory[4 + i] = dilation * strides[2 + i];
      access.logical[1 + i] = access.logical[4 + i] = 1; // not in order
      access.memoryOffset -= op.getPadding()[i] * strides[2 + i];
      if (op.getPadding()[i] == 0)
        continue;
      Value at = k.add(k.mul(k.index(shape, 1 + i), i64Constant(k, stride)),
                       k.mul(k.index(shape, 4 + i), i64Constant(k, dilation)));
      at = k.sub(at, i64Constant(k, op.getPadding()[i]));
      where = both(k, where, compare(k, P::sge, at, 0));
      where = both(k, where, compare(k, P::slt, at, type.getDimSize(2 + i)));
    }
    Value x = k.readIndexed(op.getInput(), access, {}, {}, where);
    k.define(op.getOutput(), x);
    return success();
  }
};

/// Each element of the image sums its occurrences in the windows, along a row.
struct PatchesGradModel
    : KernelLoweringInterface::ExternalModel<PatchesGradModel, PatchesGradOp> {
  KernelSpace getKernelSpace(Operation *operation) const {
    auto op = cast<PatchesGradOp>(operation);
    return KernelSpace::fixed(numElements(op.getOutput()),
                              product(op.getKernel()));
  }

  LogicalResult emitKernel(Operation *operation, KernelBuilder &k) const {
    using P = arith::CmpIPredicate;
    auto op = cast<PatchesGradOp>(operation);
    OpBuilder &b = k.getBuilder();
    auto type = tensorTypeOf(op.getGradient());
    auto image = tensorTypeOf(op.getOutput()).getShape();
    auto strides = exec::getLayout(type).strides;
    // Loops: n, c, h, w, kh, kw.
    SmallVector<int64_t> loops(image);
    loops.append({op.getKernel()[0], op.getKernel()[1]});
    Access access = Access::get(type, loops, {0, 3, -1, -1, 4, 5});
    SmallVector<Value> indices;
    SmallVector<int64_t> steps;
    Value where;
    for (int64_t i = 0; i < 2; ++i) {
      int64_t stride = op.getStride()[i];
      Value at =
          k.add(k.index(loops, 2 + i), i64Constant(k, op.getPadding()[i]));
      at = k.sub(at, k.mul(k.index(loops, 4 + i),
                           i64Constant(k, op.getDilation()[i])));
      where = both(k, where, compare(k, P::sge, at, 0));
      Value rest =
          arith::RemSIOp::create(b, k.getLoc(), at, i64Constant(k, stride));
      where = both(k, where, compare(k, P::eq, rest, 0));
      at = k.div(at, i64Constant(k, stride));
      where = both(k, where, compare(k, P::slt, at, type.getDimSize(1 + i)));
      indices.push_back(at);
      steps.push_back(strides[1 + i]);
    }
    Value g = k.readIndexed(op.getGradient(), access, indices, steps, where);
    k.define(op.getOutput(), k.reduce(ReductionKind::Sum, g), Level::Row);
    return success();
  }
};

} // namespace

void cleave::attachWindowKernels(MLIRContext *context) {
  PatchesOp::attachInterface<PatchesModel>(*context);
  PatchesGradOp::attachInterface<PatchesGradModel>(*context);
}
