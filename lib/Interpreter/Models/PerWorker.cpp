//===- PerWorker.cpp - An op for the samples of each worker ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Models.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

/// The shape of one worker's part of `tensor`, which has the workers in
/// dimension `dim`: with that dimension, of one element.
static SmallVector<int64_t> partShape(ArrayRef<int64_t> shape, int64_t dim) {
  SmallVector<int64_t> part(shape);
  part[dim] = 1;
  return part;
}

static SmallVector<int64_t> partOffsets(size_t rank, int64_t dim,
                                        int64_t worker) {
  SmallVector<int64_t> offsets(rank, 0);
  offsets[dim] = worker;
  return offsets;
}

/// Every worker computes its op on its slices. Elements of a slice are in the
/// order of those of the tensor, so that merged dimensions need no copy.
static LogicalResult evaluatePerWorker(PerWorkerOp op, const RefArgs &args,
                                       Results results,
                                       ReferenceContext &context) {
  OpBuilder builder(op.getContext());
  Block scratch;
  builder.setInsertionPointToEnd(&scratch);
  for (auto [operand, dim] : llvm::zip(op.getInputs(), op.getWorkerDims()))
    scratch.addArgument(PerWorkerOp::sliceType(operand.getType(), dim),
                        op.getLoc());
  Operation *inner = op.createInner(builder, scratch.getArguments());
  auto model = dyn_cast_or_null<ReferenceOpInterface>(inner);
  if (!model)
    return op.emitOpError("has no reference semantics for '")
           << op.getCallee() << "'";
  for (int64_t worker = 0, e = op.getWorkers(); worker < e; ++worker) {
    std::vector<RefTensor> slices(op.getInputs().size());
    SmallVector<const RefTensor *, 4> tensors;
    for (auto [i, dim] : llvm::enumerate(op.getWorkerDims())) {
      if (dim < 0) {
        tensors.push_back(&args[i]);
        continue;
      }
      slices[i] =
          cutSlice(args[i], partOffsets(args[i].shape.size(), dim, worker),
                   partShape(args[i].shape, dim));
      slices[i].shape.assign(
          cast<RankedTensorType>(inner->getOperand(i).getType()).getShape());
      tensors.push_back(&slices[i]);
    }
    std::vector<RefTensor> own;
    for (Type type : inner->getResultTypes())
      own.emplace_back(cast<RankedTensorType>(type));
    if (failed(model.evaluate(RefArgs(inner, tensors), own, context)))
      return failure();
    for (auto [i, dim] : llvm::enumerate(op.getResultDims())) {
      own[i].shape.assign(partShape(results[i].shape, dim));
      pasteSlice(results[i], partOffsets(results[i].shape.size(), dim, worker),
                 own[i]);
    }
  }
  return success();
}

void cleave::attachPerWorkerModel(MLIRContext *context) {
  ReferenceModel<PerWorkerOp, evaluatePerWorker>::attach(context);
}
