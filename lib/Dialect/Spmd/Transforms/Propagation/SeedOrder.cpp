//===- SeedOrder.cpp - The seeds that ops depend on -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/Transforms/Propagation/SeedOrder.h"
#include "cleave/Dialect/Spmd/IR/TypeOperands.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

SeedOrder::SeedOrder(Block &body)
    : roles(body, [types = TypeOperands(body)](OpOperand &use) {
        return !types.contains(use);
      }) {}

unsigned SeedOrder::firstReader(Operation *op) const {
  unsigned first = ~0u;
  for (Operation *reader : op->getUsers())
    first = std::min(first, of(reader));
  return std::max(first, of(op));
}
