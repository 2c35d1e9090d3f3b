//===- OtherParts.cpp - Parts that a schedule lacks -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Pipe/IR/Search.h"
#include "llvm/ADT/STLExtras.h"
#include <set>

using namespace cleave::pipe;

Schedule cleave::pipe::addOtherParts(Schedule schedule,
                                     llvm::ArrayRef<PartInfo> parts,
                                     int64_t microBatches,
                                     const StageMap &map) {
  std::set<std::pair<int64_t, std::string>> names;
  for (const std::vector<Action> &actions : schedule.devices)
    for (const Action &action : actions)
      names.insert({action.stage, action.part});
  std::vector<bool> present(parts.size(), false);
  for (auto [p, part] : llvm::enumerate(parts))
    if (names.count({part.stage, part.name})) {
      present[p] = true;
      for (unsigned other : part.fuses)
        present[other] = true;
    }
  // In front is what something present or in front reads, and what reads
  // nothing, such as checks of inputs.
  std::vector<bool> front(parts.size(), false);
  for (bool changed = true; changed;) {
    changed = false;
    for (auto [p, part] : llvm::enumerate(parts))
      if (!part.once && !present[p] && part.fuses.empty() &&
          part.uses.empty() && !front[p])
        changed = front[p] = true;
      else if ((present[p] && !part.once) || front[p])
        for (const PartInfo::Use &use : part.uses)
          if (!present[use.part] && !front[use.part])
            changed = front[use.part] = true;
  }
  std::vector<std::vector<Action>> before(schedule.devices.size());
  for (auto [p, part] : llvm::enumerate(parts)) {
    if (present[p] || !part.fuses.empty())
      continue;
    auto &lists = front[p] ? before : schedule.devices;
    if (part.once)
      for (int64_t device : map.devicesOf(part.stage))
        lists[device].push_back({part.name, -1, part.stage});
    else
      for (int64_t i = 0; i < microBatches; ++i)
        lists[map.device(part.stage, i)].push_back({part.name, i, part.stage});
  }
  for (auto [first, rest] : llvm::zip_equal(before, schedule.devices))
    rest.insert(rest.begin(), first.begin(), first.end());
  return schedule;
}
