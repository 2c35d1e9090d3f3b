//===- TaskTable.cpp - The tasks of a pipeline ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/Check/ResolvedSchedule.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/MathExtras.h"

using namespace cleave::scheduling;

/// Why the parts are inconsistent, or nothing.
static std::optional<std::string> checkParts(llvm::ArrayRef<PartInfo> parts) {
  for (const PartInfo &part : parts) {
    if (part.stage < 0)
      return "part " + part.name + ": the stage must not be negative";
    if (!part.fuses.empty() && !part.uses.empty())
      return "part " + part.name +
             ": a part that fuses others must have no uses of its own";
    for (const PartInfo::Use &use : part.uses)
      if (use.part >= parts.size() || !parts[use.part].fuses.empty())
        return "part " + part.name +
               ": a part may read only parts that fuse no others";
    for (unsigned other : part.fuses)
      if (other >= parts.size() || !parts[other].fuses.empty() ||
          parts[other].stage != part.stage || parts[other].once != part.once)
        return "part " + part.name +
               ": a part may fuse only parts of its stage that run as often "
               "and fuse no others";
  }
  return std::nullopt;
}

std::optional<TaskTable> TaskTable::create(llvm::ArrayRef<PartInfo> parts,
                                           int64_t microBatches,
                                           const StageMap &map,
                                           std::string &error) {
  auto fail = [&](std::string text) {
    error = std::move(text);
    return std::nullopt;
  };
  if (microBatches < 0)
    return fail("the number of micro-batches must not be negative");
  if (std::optional<std::string> why = checkParts(parts))
    return fail(*why);
  TaskTable table;
  table.parts = parts;
  table.microBatches = microBatches;
  table.map = map;
  table.stages = 1;
  for (const PartInfo &part : parts)
    table.stages = std::max(table.stages, part.stage + 1);
  // The last stages may have no parts.
  if (map.kind != StageMap::Kind::Bidirectional && map.devices > 0)
    table.stages = llvm::alignTo(table.stages, map.devices);
  if (std::optional<std::string> why = map.check(table.stages))
    return fail(*why);
  table.readers.resize(parts.size());
  table.fused.resize(parts.size(), false);
  for (auto [p, part] : llvm::enumerate(parts)) {
    int number = p;
    if (!table.index.try_emplace({part.stage, part.name}, number).second)
      return fail("stage " + std::to_string(part.stage) +
                  " has two parts named " + part.name);
    table.first.push_back(table.tasks.size());
    for (unsigned other : part.fuses)
      table.fused[p] = table.fused[other] = true;
    if (!part.fuses.empty())
      continue;
    for (const PartInfo::Use &use : part.uses)
      if (use.sameMicroBatch && !part.once && !parts[use.part].once &&
          parts[use.part].stage == part.stage)
        table.readers[use.part].push_back(number);
    if (part.once)
      for (int64_t device : map.devicesOf(part.stage))
        table.tasks.push_back({number, -1, device});
    else
      for (int64_t i = 0; i < microBatches; ++i)
        table.tasks.push_back({number, i, map.device(part.stage, i)});
  }
  return table;
}

int TaskTable::find(int64_t stage, llvm::StringRef name) const {
  auto it = index.find(std::make_pair(stage, name.str()));
  return it == index.end() ? -1 : it->second;
}

int TaskTable::task(int part, int64_t microBatch, int64_t device) const {
  if (!parts[part].once)
    return first[part] + microBatch;
  int next = first[part] + 1;
  bool second = next < static_cast<int>(tasks.size()) &&
                tasks[next].part == part && tasks[next].device == device;
  return second ? next : first[part];
}

llvm::SmallVector<int, 2> TaskTable::tasksOf(int part, int64_t microBatch,
                                             int64_t device) const {
  if (parts[part].fuses.empty())
    return {task(part, microBatch, device)};
  llvm::SmallVector<int, 2> result;
  for (unsigned other : parts[part].fuses)
    result.push_back(task(other, microBatch, device));
  return result;
}

void TaskTable::forEachNeed(int number, llvm::function_ref<void(int)> visit,
                            bool all) const {
  const Task &task = tasks[number];
  const PartInfo &part = parts[task.part];
  for (const PartInfo::Use &use : part.uses) {
    const PartInfo &from = parts[use.part];
    if (from.once || (use.sameMicroBatch && !part.once)) {
      visit(this->task(use.part, task.microBatch, task.device));
      continue;
    }
    if (!all && !part.once)
      continue;
    // The positions that hold a stage combine their results in a collective;
    // each of them reads only its own.
    bool sameStage = part.once && from.stage == part.stage;
    for (int64_t i = 0; i < microBatches; ++i)
      if (int other = first[use.part] + i;
          !sameStage || tasks[other].device == task.device)
        visit(other);
  }
}

Action TaskTable::action(int task) const {
  const PartInfo &part = parts[tasks[task].part];
  return {part.name, tasks[task].microBatch, part.stage};
}
