//===- StepParts.cpp - What of a step is backward or update ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/Analysis/StepParts.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave::graph;

StepParts::StepParts(func::FuncOp entry) {
  Block &block = entry.getBody().front();
  for (Operation &op : block.without_terminator()) {
    auto dependsOn = [&](const llvm::DenseSet<Operation *> &ops) {
      return llvm::any_of(op.getOperands(), [&](Value operand) {
        return ops.contains(operand.getDefiningOp());
      });
    };
    if (isa<SeedOp>(op) || dependsOn(backward))
      backward.insert(&op);
    if (isa<GradientOp>(op) || dependsOn(update))
      update.insert(&op);
  }
  // What a gradient is made of is not read by its update. A result of the step
  // that depends on no gradient is the model's.
  for (Operation &op : llvm::reverse(block.without_terminator()))
    if (!op.use_empty() && llvm::all_of(op.getUsers(), [&](Operation *user) {
          return update.contains(user) && !isa<GradientOp>(user);
        }))
      update.insert(&op);
}
