//===- Schedule.cpp - The order of actions, as data -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/Schedule.h"
#include "cleave/Support/TreeOrder.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave::scheduling;

std::vector<bool>
cleave::scheduling::partsThatBegin(llvm::ArrayRef<PartInfo> parts) {
  std::vector<bool> begins(parts.size(), false);
  for (const PartInfo &part : parts)
    for (const PartInfo::Use &use : part.uses) {
      const PartInfo &giver = parts[use.part];
      begins[use.part] = giver.once && giver.uses.empty() &&
                         giver.fuses.empty() && !giver.updates;
    }
  return begins;
}

Schedule Schedule::singleStage(llvm::ArrayRef<PartInfo> parts,
                               int64_t microBatches, bool inTree) {
  auto batch = [&](int64_t index) {
    return inTree ? treeOrder(index, microBatches) : index;
  };
  // A part is a prologue if a part that runs for each micro-batch reads its
  // results of all micro-batches.
  std::vector<bool> prologue = partsThatBegin(parts);
  for (const PartInfo &part : parts)
    if (!part.once)
      for (const PartInfo::Use &use : part.uses)
        if (!use.sameMicroBatch)
          prologue[use.part] = true;
  // The parts that a prologue reads are prologues too.
  for (size_t p = parts.size(); p-- > 0;)
    if (prologue[p])
      for (const PartInfo::Use &use : parts[p].uses)
        prologue[use.part] = true;

  Schedule schedule;
  std::vector<Action> &actions = schedule.actions();
  for (auto [p, part] : llvm::enumerate(parts)) {
    if (!prologue[p] || !part.fuses.empty())
      continue;
    if (part.once)
      actions.push_back({part.name, -1, part.stage});
    else
      for (int64_t i = 0; i < microBatches; ++i)
        actions.push_back({part.name, batch(i), part.stage});
  }
  for (int64_t i = 0; i < microBatches; ++i)
    for (auto [p, part] : llvm::enumerate(parts))
      if (!prologue[p] && !part.once && part.fuses.empty())
        actions.push_back({part.name, batch(i), part.stage});
  for (auto [p, part] : llvm::enumerate(parts))
    if (!prologue[p] && part.once && part.fuses.empty())
      actions.push_back({part.name, -1, part.stage});
  return schedule;
}
