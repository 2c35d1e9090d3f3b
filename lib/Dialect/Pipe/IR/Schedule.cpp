//===- Schedule.cpp - The order of actions, as data -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Pipe/IR/Schedule.h"
#include "cleave/Support/TreeOrder.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave::pipe;

std::optional<std::string> Schedule::verify(llvm::ArrayRef<PartInfo> parts,
                                            int64_t microBatches) const {
  if (devices.size() != 1)
    return "it is for " + std::to_string(devices.size()) +
           " devices; write one list of actions, without '|'";
  // done[p][i]: part p has run for micro-batch i (index 0 when it runs once).
  std::vector<std::vector<bool>> done(parts.size());
  std::vector<int64_t> count(parts.size(), 0);
  auto runs = [&](const PartInfo &part) {
    return part.once ? 1 : microBatches;
  };
  for (auto [p, part] : llvm::enumerate(parts))
    done[p].resize(runs(part), false);

  for (const Action &action : actions()) {
    auto it = llvm::find_if(parts, [&](const PartInfo &part) {
      return part.name == action.part && part.stage == action.stage;
    });
    if (it == parts.end())
      return action.str() + ": there is no such part";
    size_t p = it - parts.begin();
    if (it->once != (action.microBatch < 0))
      return action.str() +
             (it->once ? ": this part runs once, without a micro-batch"
                       : ": this part needs a micro-batch");
    if (!it->once && action.microBatch >= microBatches)
      return action.str() + ": there are only " + std::to_string(microBatches) +
             " micro-batches";
    size_t index = it->once ? 0 : action.microBatch;
    if (done[p][index])
      return action.str() + " runs twice";
    for (const PartInfo::Use &use : it->uses) {
      const PartInfo &from = parts[use.part];
      bool same = use.sameMicroBatch && !it->once && !from.once;
      if (same ? !done[use.part][index] : count[use.part] < runs(from)) {
        // Name the run that is missing.
        size_t missing =
            same ? index
                 : llvm::find(done[use.part], false) - done[use.part].begin();
        Action needed{from.name, from.once ? -1 : static_cast<int64_t>(missing),
                      from.stage};
        return action.str() + " reads results of " + needed.str() +
               ", which has not run";
      }
    }
    done[p][index] = true;
    ++count[p];
  }
  for (auto [p, part] : llvm::enumerate(parts))
    if (count[p] < runs(part)) {
      size_t missing = llvm::find(done[p], false) - done[p].begin();
      Action needed{part.name, part.once ? -1 : static_cast<int64_t>(missing),
                    part.stage};
      return needed.str() + " never runs";
    }
  return std::nullopt;
}

Schedule Schedule::singleStage(llvm::ArrayRef<PartInfo> parts,
                               int64_t microBatches, bool inTree) {
  auto batch = [&](int64_t place) {
    return inTree ? treeOrder(place, microBatches) : place;
  };
  // A part that another per-micro-batch part needs whole is a prologue: it
  // runs for all micro-batches first.
  std::vector<bool> prologue(parts.size(), false);
  for (const PartInfo &part : parts)
    if (!part.once)
      for (const PartInfo::Use &use : part.uses)
        if (!use.sameMicroBatch)
          prologue[use.part] = true;
  // So is what a prologue reads.
  for (size_t p = parts.size(); p-- > 0;)
    if (prologue[p])
      for (const PartInfo::Use &use : parts[p].uses)
        prologue[use.part] = true;

  Schedule schedule;
  std::vector<Action> &actions = schedule.actions();
  for (auto [p, part] : llvm::enumerate(parts)) {
    if (!prologue[p])
      continue;
    if (part.once)
      actions.push_back({part.name, -1, part.stage});
    else
      for (int64_t i = 0; i < microBatches; ++i)
        actions.push_back({part.name, batch(i), part.stage});
  }
  for (int64_t i = 0; i < microBatches; ++i)
    for (auto [p, part] : llvm::enumerate(parts))
      if (!prologue[p] && !part.once)
        actions.push_back({part.name, batch(i), part.stage});
  for (auto [p, part] : llvm::enumerate(parts))
    if (!prologue[p] && part.once)
      actions.push_back({part.name, -1, part.stage});
  return schedule;
}
