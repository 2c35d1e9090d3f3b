//===- Slices.cpp - The ops that depend on others -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/Analysis/Slices.h"
#include "llvm/ADT/SmallPtrSet.h"

using namespace mlir;
using namespace cleave::graph;

static bool reads(const SliceOptions &options, OpOperand &use) {
  return !options.reads || options.reads(use);
}

static bool passes(const SliceOptions &options, Operation *op) {
  return !options.passes || options.passes(op);
}

OpSlice cleave::graph::forwardSlice(Value value, SliceOptions options) {
  OpSlice slice;
  auto addReaders = [&](Value made) {
    for (OpOperand &use : made.getUses())
      if (reads(options, use))
        slice.insert(use.getOwner());
  };
  addReaders(value);
  for (size_t i = 0; i < slice.size(); ++i)
    if (Operation *op = slice[i]; passes(options, op))
      llvm::for_each(op->getResults(), addReaders);
  return slice;
}

OpSlice cleave::graph::forwardSlice(Block &body,
                                    function_ref<bool(Operation *)> begins,
                                    SliceOptions options) {
  OpSlice slice;
  for (Operation &op : body) {
    if (op.hasTrait<OpTrait::IsTerminator>())
      break;
    if (begins(&op) || llvm::any_of(op.getOpOperands(), [&](OpOperand &use) {
          Operation *maker = use.get().getDefiningOp();
          return slice.contains(maker) && passes(options, maker) &&
                 reads(options, use);
        }))
      slice.insert(&op);
  }
  return slice;
}

llvm::DenseSet<Value>
cleave::graph::dependentValues(Block &body, function_ref<bool(Value)> begins) {
  llvm::DenseSet<Value> values;
  for (BlockArgument argument : body.getArguments())
    if (begins(argument))
      values.insert(argument);
  for (Operation &op : body) {
    bool depends = llvm::any_of(
        op.getOperands(), [&](Value value) { return values.contains(value); });
    for (Value result : op.getResults())
      if (depends || begins(result))
        values.insert(result);
  }
  return values;
}

/// Adds the ops that those of `work` depend on to `slice`.
static void addMakers(SmallVector<Operation *> work, OpSlice &slice,
                      const SliceOptions &options) {
  while (!work.empty())
    for (OpOperand &use : work.pop_back_val()->getOpOperands())
      if (Operation *maker = use.get().getDefiningOp();
          maker && reads(options, use) && slice.insert(maker) &&
          passes(options, maker))
        work.push_back(maker);
}

OpSlice cleave::graph::backwardSlice(Value value, SliceOptions options) {
  OpSlice slice;
  if (Operation *op = value.getDefiningOp()) {
    slice.insert(op);
    if (passes(options, op))
      addMakers({op}, slice, options);
  }
  return slice;
}

OpSlice cleave::graph::backwardSlice(ArrayRef<Operation *> ops,
                                     SliceOptions options) {
  OpSlice slice;
  addMakers(SmallVector<Operation *>(ops), slice, options);
  return slice;
}

bool cleave::graph::dependsOn(Operation *op, Operation *source,
                              function_ref<bool(OpOperand &)> reads) {
  SmallVector<Operation *> work{op};
  llvm::SmallPtrSet<Operation *, 32> seen;
  while (!work.empty()) {
    Operation *next = work.pop_back_val();
    if (next == source)
      return true;
    // An op before the source does not depend on it.
    if (next->isBeforeInBlock(source) || !seen.insert(next).second)
      continue;
    for (OpOperand &use : next->getOpOperands())
      if (Operation *maker = use.get().getDefiningOp();
          maker && (!reads || reads(use)))
        work.push_back(maker);
  }
  return false;
}
