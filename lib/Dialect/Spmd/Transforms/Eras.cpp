//===- Eras.cpp - What depends on which seed ------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Eras.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

Eras::Eras(Block &body) {
  unsigned seeds = 0;
  for (Operation &op : body) {
    unsigned era = isa<graph::SeedOp>(op) ? ++seeds : 0;
    llvm::SmallVector<unsigned, 1> unread;
    // A barrier reads nothing of what it waits for, and yet is behind it.
    auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(&op);
    if (ruled && !isa<BarrierOp>(op))
      unread = ruled.getShardingRule().unread;
    for (auto [i, operand] : llvm::enumerate(op.getOperands()))
      if (!llvm::is_contained(unread, i))
        era = std::max(era, of(operand));
    eras[&op] = era;
  }
}

unsigned Eras::firstReader(Operation *op) const {
  unsigned first = ~0u;
  for (Operation *reader : op->getUsers())
    first = std::min(first, of(reader));
  return std::max(first, of(op));
}
