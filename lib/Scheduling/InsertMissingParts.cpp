//===- InsertMissingParts.cpp - Insertion of parts that are not listed ----===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/Search/Search.h"
#include "llvm/ADT/STLExtras.h"
#include <map>
#include <set>

using namespace cleave::scheduling;

/// The listed parts that depend on `part`, which is not listed, directly or
/// through other parts that are not listed.
static std::set<unsigned> waitingFor(unsigned part,
                                     llvm::ArrayRef<PartInfo> parts,
                                     const std::vector<bool> &present) {
  std::set<unsigned> found;
  std::vector<unsigned> work{part};
  std::set<unsigned> seen{part};
  while (!work.empty()) {
    unsigned next = work.back();
    work.pop_back();
    for (auto [p, reader] : llvm::enumerate(parts)) {
      if (llvm::none_of(reader.uses, [&](const PartInfo::Use &use) {
            return use.part == next;
          }))
        continue;
      if (present[p])
        found.insert(p);
      else if (seen.insert(p).second)
        work.push_back(p);
    }
  }
  return found;
}

Schedule cleave::scheduling::insertMissingParts(Schedule schedule,
                                                llvm::ArrayRef<PartInfo> parts,
                                                int64_t microBatches,
                                                const StageMap &map) {
  std::set<std::pair<int64_t, llvm::StringRef>> names;
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
  // The parts to insert in front: those that listed parts or parts in front
  // read, and those that read nothing, such as checks of inputs.
  std::vector<bool> front = partsThatBegin(parts);
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
    std::set<unsigned> readers;
    if (!front[p])
      readers = waitingFor(p, parts, present);
    // At the end, but before the actions that depend on it.
    auto add = [&](int64_t device, int64_t microBatch) {
      std::vector<Action> &list = lists[device];
      auto at = llvm::find_if(list, [&](const Action &action) {
        return llvm::any_of(readers, [&](unsigned reader) {
          return parts[reader].stage == action.stage &&
                 parts[reader].name == action.part;
        });
      });
      list.insert(at, {part.name, microBatch, part.stage});
    };
    if (part.once)
      for (int64_t device : map.devicesOf(part.stage))
        add(device, -1);
    else
      for (int64_t i = 0; i < microBatches; ++i)
        add(map.device(part.stage, i), i);
  }
  for (auto [first, rest] : llvm::zip_equal(before, schedule.devices))
    rest.insert(rest.begin(), first.begin(), first.end());
  return schedule;
}
