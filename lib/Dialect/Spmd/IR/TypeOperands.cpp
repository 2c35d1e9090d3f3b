//===- TypeOperands.cpp - Operands of which ops read the type -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/IR/TypeOperands.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

TypeOperands::TypeOperands(Block &body) {
  for (Operation &op : body)
    add(&op);
}

void TypeOperands::add(Operation *op) {
  auto ruled = dyn_cast<graph::ShardingRuleOpInterface>(op);
  if (!ruled || isa<BarrierOp>(op))
    return;
  if (auto list = ruled.getShardingRule().unused; !list.empty())
    operands[op] = list;
}

bool TypeOperands::contains(OpOperand &operand) const {
  auto it = operands.find(operand.getOwner());
  return it != operands.end() &&
         llvm::is_contained(it->second, operand.getOperandNumber());
}
