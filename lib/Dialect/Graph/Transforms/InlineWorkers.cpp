//===- InlineWorkers.cpp - The ops of workers as ops of a rank ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Formula.h"
#include "cleave/Dialect/Graph/Transforms/Passes.h"

namespace cleave::graph {
#define GEN_PASS_DEF_INLINEWORKERS
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"
} // namespace cleave::graph

using namespace mlir;
using namespace cleave::graph;

/// Slice `worker` of `value`, which has the workers in dimension `dim`.
static Value sliceOf(Formula &f, Value value, int64_t dim, int64_t worker) {
  RankedTensorType type = tensorTypeOf(value);
  if (dim < 0)
    return value;
  if (type.getDimSize(dim) > 1) {
    SmallVector<int64_t> offsets(type.getRank(), 0), sizes(type.getShape()),
        strides(type.getRank(), 1);
    offsets[dim] = worker;
    sizes[dim] = 1;
    value = SliceOp::create(f.builder, f.loc, value, offsets, sizes, strides);
  }
  return f.reshape(value, PerWorkerOp::sliceType(type, dim).getShape());
}

/// The results of all workers as one tensor of `type`.
static Value join(Formula &f, ArrayRef<Value> slices, RankedTensorType type,
                  int64_t dim) {
  SmallVector<int64_t> shape(type.getShape());
  shape[dim] = 1;
  SmallVector<Value> parts = llvm::map_to_vector(
      slices, [&](Value slice) { return f.reshape(slice, shape); });
  return parts.size() == 1
             ? parts[0]
             : ConcatOp::create(f.builder, f.loc, parts, dim).getOutput();
}

static LogicalResult inlineWorkers(PerWorkerOp op) {
  OpBuilder builder(op);
  Formula f{builder, op.getLoc()};
  SmallVector<SmallVector<Value>> results(op.getNumResults());
  for (int64_t worker = 0, e = op.getWorkers(); worker < e; ++worker) {
    SmallVector<Value> operands;
    for (auto [operand, dim] : llvm::zip(op.getInputs(), op.getWorkerDims()))
      operands.push_back(sliceOf(f, operand, dim, worker));
    Operation *inner = op.createInner(builder, operands);
    if (!inner)
      return op.emitOpError() << "there is no op '" << op.getCallee() << "'";
    for (auto [list, result] : llvm::zip(results, inner->getResults()))
      list.push_back(result);
  }
  for (auto [i, list] : llvm::enumerate(results))
    op.getResult(i).replaceAllUsesWith(
        join(f, list, tensorTypeOf(op.getResult(i)), op.getResultDims()[i]));
  op.erase();
  return success();
}

namespace {
struct InlineWorkers final
    : cleave::graph::impl::InlineWorkersBase<InlineWorkers> {
  void runOnOperation() override {
    SmallVector<PerWorkerOp> ops;
    getOperation().walk([&](PerWorkerOp op) { ops.push_back(op); });
    for (PerWorkerOp op : ops)
      if (failed(inlineWorkers(op)))
        return signalPassFailure();
  }
};
} // namespace
