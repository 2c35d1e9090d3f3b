//===- StepRoles.cpp - Forward, backward and update by dataflow -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/Analysis/StepRoles.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave::graph;

StepRoles::StepRoles(Block &body, function_ref<bool(OpOperand &)> reads) {
  for (Operation &op : body)
    add(&op, reads);
  for (Operation &op : llvm::reverse(body))
    if (!op.hasTrait<OpTrait::IsTerminator>() &&
        (isUpdate(&op) ||
         (!op.use_empty() && llvm::all_of(op.getUsers(), [&](Operation *user) {
           return serving.contains(user) && !isa<GradientOp>(user);
         }))))
      serving.insert(&op);
}

/// Finds the role of an op whose operands have theirs.
void StepRoles::add(Operation *op, function_ref<bool(OpOperand &)> reads) {
  Role role;
  if (isa<SeedOp>(op))
    role = {StepRole::Backward, ++seeds};
  if (isa<GradientOp>(op))
    role.role = StepRole::Update;
  for (OpOperand &use : op->getOpOperands())
    if (Operation *maker = use.get().getDefiningOp();
        maker && (!reads || reads(use))) {
      Role from = roles.lookup(maker);
      role.role = std::max(role.role, from.role);
      role.seed = std::max(role.seed, from.seed);
    }
  if (op->hasTrait<OpTrait::IsTerminator>())
    role.role = StepRole::Forward;
  roles[op] = role;
}
