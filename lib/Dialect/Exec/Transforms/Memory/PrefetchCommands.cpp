//===- PrefetchCommands.cpp - Fetches before the commands before them -----===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A fetch hides behind the commands between its beginning and its first
/// reader. It begins as early as the bytes that wait for their readers permit:
/// what is fetched early takes memory for longer.
///
//===----------------------------------------------------------------------===//

#include "PartMemory.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

/// What is fetched early is at most this part of all that a part fetches: more
/// of it in memory would leave little to gain.
static constexpr int64_t kAtOnce = 8;

LogicalResult cleave::exec::checkTier(func::FuncOp part) {
  auto isTier = [&](Value value) {
    if (auto argument = dyn_cast<BlockArgument>(value))
      return part.getArgAttr(argument.getArgNumber(), kTierAttr) != nullptr;
    return value.getDefiningOp<EvictOp>() != nullptr;
  };
  for (Operation &op : part.front())
    for (OpOperand &use : op.getOpOperands()) {
      bool takes =
          isa<FetchOp>(op) || (isa<EvictOp>(op) && use.getOperandNumber() == 1);
      if (isTier(use.get()) != takes && !op.hasTrait<OpTrait::IsTerminator>())
        return op.emitOpError()
               << graph::nameOperand(use)
               << (takes ? " is not in the second tier"
                         : " is in the second tier: it must be fetched first");
    }
  return success();
}

void cleave::exec::prefetch(func::FuncOp part, int64_t maxBytes) {
  std::vector<Operation *> others;
  DenseMap<Operation *, size_t> number;
  SmallVector<std::pair<FetchOp, size_t>> fetches;
  for (Operation *op : commandsOf(part)) {
    if (auto fetch = dyn_cast<FetchOp>(op)) {
      fetches.push_back({fetch, others.size()});
    } else {
      number[op] = others.size();
      others.push_back(op);
    }
  }
  int64_t total = 0;
  for (auto [fetch, at] : fetches)
    total += extentBytes(tensorTypeOf(fetch.getOutput()));
  maxBytes = std::min(maxBytes, total / kAtOnce);
  // The bytes that wait for their readers while each command runs.
  std::vector<int64_t> waiting(others.size(), 0);
  // Fetches begin in the order in which they are needed.
  size_t begin = 0;
  for (auto [fetch, at] : fetches) {
    int64_t bytes = extentBytes(tensorTypeOf(fetch.getOutput()));
    size_t first = others.size(), last = begin;
    for (Operation *reader : readersOf(fetch.getOutput()))
      if (auto it = number.find(reader); it != number.end())
        first = std::min(first, it->second);
    for (begin = at; begin > last && waiting[begin - 1] + bytes <= maxBytes;)
      --begin;
    for (size_t i = begin; i < first; ++i)
      waiting[i] += bytes;
    // Where it stands, it is before its views, which are no commands.
    if (begin < at)
      fetch->moveBefore(others[begin]);
  }
}
