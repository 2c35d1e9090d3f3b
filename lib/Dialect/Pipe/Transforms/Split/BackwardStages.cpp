//===- BackwardStages.cpp - Which stage computes what of backward ---------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The stage of an op of backward is that of the gradient that it reads, or an
/// earlier one that has the forward values that it reads. Ops that depend on no
/// gradient yet are in the last stage of forward.
///
//===----------------------------------------------------------------------===//

#include "Stages.h"
#include "cleave/Dialect/Graph/Analysis/Slices.h"
#include "cleave/Dialect/Graph/Analysis/Sources.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

/// The stages that have a forward value or argument: one set for each of the
/// values and parameters that it is computed from and that not all stages have.
SmallVector<StageSet> Stages::places(Value value) const {
  SmallVector<StageSet> found;
  Operation *op = value.getDefiningOp();
  if (op && flow.varies(op) && !stages.contains(op) && !released.contains(op))
    return found;
  // A value that does not vary is where its parameters are.
  graph::walkSources(value, [&](Value next, SmallVectorImpl<Value> &work) {
    Operation *from = next.getDefiningOp();
    if (from && !flow.varies(from)) {
      llvm::append_range(work, from->getOperands());
      return;
    }
    if (auto argument = dyn_cast<BlockArgument>(next);
        argument &&
        !graph::hasRole(entry, argument.getArgNumber(), "parameter"))
      return;
    if (auto it = present.find(next); it != present.end())
      found.push_back(it->second);
  });
  return found;
}

/// The last stage before `stage` that has `value`; nothing if `stage` has it,
/// or no earlier stage does.
std::optional<int64_t> Stages::lowered(Value value, int64_t stage) const {
  std::optional<int64_t> found;
  for (const StageSet &set : places(value))
    if (!set.test(stage))
      if (int below = set.find_last_in(0, stage); below >= 0)
        found = std::min<int64_t>(found.value_or(stage), below);
  return found;
}

/// Whether the op reads `operand`. A barrier does not read its second operand.
static bool isRead(const Flow &flow, OpOperand &operand) {
  auto barrier = dyn_cast<spmd::BarrierOp>(operand.getOwner());
  return !flow.readsTypeOnly(operand) &&
         !(barrier && operand == barrier.getAfterMutable());
}

/// The stage of an op of backward that reads only forward values and seeds,
/// such as a head that is fused with its loss: the last stage of these values.
/// Without a seed, such an op counts as forward here. Nothing if the op reads a
/// gradient.
std::optional<int64_t> Stages::turningPoint(Operation &op) const {
  std::optional<int64_t> stage;
  if (isa<graph::SeedOp>(op))
    return stage;
  for (OpOperand &operand : op.getOpOperands()) {
    Operation *from = operand.get().getDefiningOp();
    if (!from || !isRead(flow, operand))
      continue;
    if (seeds.contains(from))
      continue;
    std::optional<int64_t> own = of(from);
    if (own && flow.part(from) == PartId::Backward && !resumed.contains(from))
      return std::nullopt;
    if (own)
      stage = std::max(stage.value_or(0), *own);
  }
  return stage;
}

/// Whether an op of backward scales a seed: it reads only scalars of forward.
bool Stages::isSeed(Operation &op) const {
  if (isa<graph::SeedOp>(op))
    return true;
  bool seeded = false;
  for (OpOperand &operand : op.getOpOperands()) {
    Operation *from = operand.get().getDefiningOp();
    if (!isRead(flow, operand))
      continue;
    if (from && seeds.contains(from))
      seeded = true;
    else if (fromParameters.contains(operand.get()) || (from && of(from))) {
      if (cast<RankedTensorType>(operand.get().getType()).getNumElements() > 1)
        return false;
    }
  }
  return seeded;
}

/// Whether an op of backward depends on no value of a particular stage, such as
/// the divisor of a seed. Each stage that reads it computes it.
bool Stages::isEverywhere(Operation &op) const {
  return !isa<graph::SeedOp>(op) && !flow.isHeavy(&op) &&
         llvm::none_of(op.getOpOperands(), [&](OpOperand &operand) {
           Value value = operand.get();
           Operation *from = value.getDefiningOp();
           return !flow.readsTypeOnly(operand) &&
                  (fromParameters.contains(value) || (from && of(from)));
         });
}

/// Moves ops that depend on no gradient yet to `stage`, which reads them first,
/// because backward of a later stage runs before that of earlier ones.
void Stages::resumeIn(Operation *op, int64_t stage) {
  if (!op || !resumed.contains(op) || *of(op) >= stage)
    return;
  stages[op] = stage;
  for (OpOperand &operand : op->getOpOperands()) {
    if (!isRead(flow, operand))
      continue;
    resumeIn(operand.get().getDefiningOp(), stage);
    markRead(operand.get(), stage);
  }
}

/// Assigns each op of backward to the stage of its gradient, or to an earlier
/// one that has the forward values that it reads.
void Stages::followForward() {
  for (Operation &op : body.without_terminator()) {
    if (flow.part(&op) != PartId::Backward)
      continue;
    bool seed = isSeed(op);
    if (seed)
      seeds.insert(&op);
    // Scaled seeds are computed in each stage that reads them, so that no stage
    // waits for the backward of another one.
    if (!flow.varies(&op) || isEverywhere(op) ||
        (seed && !isa<graph::SeedOp>(op)))
      continue;
    if (std::optional<int64_t> turning = turningPoint(op)) {
      stages[&op] = *turning;
      bool seeded = false;
      for (OpOperand &operand : op.getOpOperands()) {
        Operation *from = operand.get().getDefiningOp();
        if (!isRead(flow, operand))
          continue;
        resumeIn(from, *turning);
        markRead(operand.get(), *turning);
        seeded |= from && flow.part(from) == PartId::Backward &&
                  (!of(from) || seeds.contains(from));
      }
      if (!seeded)
        resumed.insert(&op);
      continue;
    }
    int64_t stage = count - 1;
    for (OpOperand &operand : op.getOpOperands()) {
      // A seed does not read the loss either.
      Operation *from = operand.get().getDefiningOp();
      if (from &&
          (flow.part(from) == PartId::Backward || isa<graph::SeedOp>(op)))
        stage = std::min(stage, of(from).value_or(stage));
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (OpOperand &operand : op.getOpOperands()) {
        Operation *from = operand.get().getDefiningOp();
        if (flow.readsTypeOnly(operand) ||
            (from && of(from) && flow.part(from) == PartId::Backward))
          continue;
        if (std::optional<int64_t> below = lowered(operand.get(), stage)) {
          stage = *below;
          moved = true;
        }
      }
    }
    stages[&op] = stage;
  }
}

/// The last stage up to `stage` that reads `value`, a value of backward, or -1.
/// A sum that becomes a gradient is read in the stage of the parameter.
int64_t Stages::lastReader(Value value, int64_t stage) const {
  int64_t last = -1;
  auto passes = [&](Operation *user) {
    return !of(user) && !isa<graph::GradientOp>(user);
  };
  for (Operation *user : graph::forwardSlice(value, {.passes = passes})) {
    if (std::optional<int64_t> own = of(user)) {
      last = std::max(last, *own);
    } else if (auto gradient = dyn_cast<graph::GradientOp>(user)) {
      StageSet held = holders(gradient.getParameter());
      int below = held.test(stage) ? stage : held.find_last_in(0, stage);
      last = std::max<int64_t>(last, below < 0 ? stage : below);
    } else if (user->getNumResults() == 0) {
      last = std::max(last, stage);
    }
  }
  return last;
}

/// Moves an op of backward whose results only an earlier stage reads to that
/// stage, if no more is sent then: for example the gradient of a dropout at the
/// end of a stage.
void Stages::sinkBackward() {
  for (Operation &op : llvm::reverse(body.without_terminator())) {
    auto found = stages.find(&op);
    if (found == stages.end() || flow.part(&op) != PartId::Backward ||
        isa<graph::SeedOp>(op) ||
        (flow.isHeavy(&op) && !isa<spmd::CommunicationOpInterface>(op)))
      continue;
    int64_t stage = found->second, target = -1;
    for (Value result : op.getResults())
      target = std::max(target, lastReader(result, stage));
    if (target < 0 || target >= stage)
      continue;
    int64_t saved = 0, added = 0;
    for (Value result : op.getResults())
      saved += lastReader(result, stage) >= 0 ? bytesOf(result) : 0;
    bool can = true;
    for (OpOperand &operand : op.getOpOperands()) {
      Value value = operand.get();
      Operation *from = value.getDefiningOp();
      if (flow.readsTypeOnly(operand))
        continue;
      if (!from || !of(from) || flow.part(from) != PartId::Backward) {
        can &= llvm::all_of(places(value), [&](const StageSet &set) {
          return set.test(target);
        });
        continue;
      }
      bool there = llvm::any_of(value.getUsers(), [&](Operation *user) {
        return user != &op && of(user) == target;
      });
      if (std::optional<int64_t> own = of(from); own && *own > target && !there)
        added += bytesOf(value);
    }
    if (can && added <= saved)
      found->second = target;
  }
}
