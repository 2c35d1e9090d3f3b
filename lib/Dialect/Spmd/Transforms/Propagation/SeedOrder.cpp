//===- SeedOrder.cpp - The seeds that ops depend on -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/Transforms/Propagation/SeedOrder.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

SeedOrder::SeedOrder(Block &body) {
  unsigned seeds = 0;
  for (Operation &op : body) {
    unsigned seedIndex = isa<graph::SeedOp>(op) ? ++seeds : 0;
    llvm::SmallVector<unsigned, 1> unused;
    // A barrier depends on its second operand, although it does not read it.
    auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(&op);
    if (ruled && !isa<BarrierOp>(op))
      unused = ruled.getShardingRule().unused;
    for (auto [i, operand] : llvm::enumerate(op.getOperands()))
      if (!llvm::is_contained(unused, i))
        seedIndex = std::max(seedIndex, of(operand));
    seedOrder[&op] = seedIndex;
  }
}

unsigned SeedOrder::firstReader(Operation *op) const {
  unsigned first = ~0u;
  for (Operation *reader : op->getUsers())
    first = std::min(first, of(reader));
  return std::max(first, of(op));
}
