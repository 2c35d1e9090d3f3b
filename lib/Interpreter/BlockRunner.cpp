//===- BlockRunner.cpp - Executes the ops of a block on all ranks ---------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "BlockRunner.h"

using namespace mlir;
using namespace cleave;

namespace {

/// The values of one block on all ranks; each is released after its last use.
class Frame {
public:
  Frame(Block &block, ArrayRef<int64_t> ranks)
      : ranks(ranks), numRanks(ranks.size()) {
    for (Operation &op : block)
      for (Value operand : op.getOperands())
        ++remainingUses[operand];
  }

  void define(Value value, std::vector<TensorRef> tensors) {
    if (remainingUses.lookup(value) != 0)
      values[value] = std::move(tensors);
  }
  const TensorRef &lookup(Value value, int64_t rank) const {
    return values.find(value)->second[rank];
  }
  RefArgs arguments(Operation &op, int64_t rank) const {
    SmallVector<const RefTensor *, 4> tensors;
    for (Value operand : op.getOperands())
      tensors.push_back(lookup(operand, rank).get());
    return RefArgs(&op, std::move(tensors));
  }
  void release(Operation &op) {
    for (Value operand : op.getOperands())
      if (--remainingUses[operand] == 0)
        values.erase(operand);
  }

  ArrayRef<int64_t> ranks;
  int64_t numRanks;

private:
  DenseMap<Value, std::vector<TensorRef>> values;
  DenseMap<Value, int64_t> remainingUses;
};

} // namespace

/// Passes operands and results of `op` to the observer, rank by rank.
static void observe(Operation &op, const Frame &frame,
                    ArrayRef<std::vector<TensorRef>> done,
                    ReferenceContext &context) {
  for (int64_t rank = 0; rank < frame.numRanks; ++rank) {
    SmallVector<const RefTensor *> results;
    for (const std::vector<TensorRef> &tensors : done)
      results.push_back(tensors[rank].get());
    context.observer(&op, frame.arguments(op, rank), results);
  }
}

/// Executes `op` on every rank.
static LogicalResult runOp(Operation &op, Frame &frame,
                           ReferenceContext &context) {
  // results[r][i] is result i on rank r.
  std::vector<std::vector<RefTensor>> results(frame.numRanks);
  for (std::vector<RefTensor> &tensors : results)
    for (Type type : op.getResultTypes()) {
      auto tensor = dyn_cast<RankedTensorType>(type);
      if (!tensor || !tensor.hasStaticShape())
        return op.emitOpError("result of type ")
               << type << " is not a tensor of static shape: the reference "
               << "interpreter cannot hold it";
      tensors.emplace_back(tensor);
    }

  if (auto collective = dyn_cast<ReferenceCollectiveOpInterface>(op)) {
    std::vector<RefArgs> args;
    std::vector<MutableArrayRef<RefTensor>> views;
    for (int64_t rank = 0; rank < frame.numRanks; ++rank) {
      args.push_back(frame.arguments(op, rank));
      views.push_back(results[rank]);
    }
    if (failed(collective.evaluateTogether(args, views, context)))
      return failure();
  } else if (auto local = dyn_cast<ReferenceOpInterface>(op)) {
    for (int64_t i = 0; i < frame.numRanks; ++i) {
      context.rank = frame.ranks[i];
      if (failed(local.evaluate(frame.arguments(op, i), results[i], context)))
        return failure();
    }
  } else {
    return op.emitOpError("has no reference semantics: it cannot be executed "
                          "by the reference interpreter");
  }

  // done[i][r] is result i on rank r.
  std::vector<std::vector<TensorRef>> done;
  for (auto [i, value] : llvm::enumerate(op.getResults())) {
    std::vector<TensorRef> tensors;
    for (std::vector<RefTensor> &own : results) {
      RefTensor &tensor = own[i];
      if (tensor.type() !=
          RankedTensorType::get(
              cast<RankedTensorType>(value.getType()).getShape(),
              getElementTypeOrSelf(value.getType())))
        return op.emitOpError("reference semantics gave ")
               << tensor.type() << " for result " << i << " of type "
               << value.getType();
      if (context.disturbance)
        context.disturbance(&op, tensor);
      settle(tensor, context.precision);
      tensors.push_back(std::make_shared<RefTensor>(std::move(tensor)));
    }
    frame.define(value, tensors);
    done.push_back(std::move(tensors));
  }
  if (context.observer)
    observe(op, frame, done, context);
  frame.release(op);
  return success();
}

FailureOr<RankTensors> cleave::runBlock(Block &block,
                                        const RankTensors &arguments,
                                        ArrayRef<int64_t> ranks,
                                        ReferenceContext &context) {
  Frame frame(block, ranks);
  for (BlockArgument argument : block.getArguments()) {
    std::vector<TensorRef> tensors;
    for (const std::vector<TensorRef> &own : arguments)
      tensors.push_back(own[argument.getArgNumber()]);
    frame.define(argument, std::move(tensors));
  }
  for (Operation &op : block.without_terminator())
    if (failed(runOp(op, frame, context)))
      return failure();
  RankTensors results(arguments.size());
  for (Value operand : block.getTerminator()->getOperands())
    for (auto [rank, own] : llvm::enumerate(results))
      own.push_back(frame.lookup(operand, rank));
  return results;
}
