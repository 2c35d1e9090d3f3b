//===- SavedReplay.cpp - Saved results and parameter versions -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/Check/SavedReplay.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave::scheduling;

void SavedReplay::run(const Node &node) {
  if (node.kind != Action::Kind::Run)
    return;
  for (int task : node.tasks) {
    const Task &info = table.tasks[task];
    int64_t stage = table.parts[info.part].stage;
    table.forEachNeed(task, [&](int need) {
      if (!llvm::is_contained(table.readers[table.tasks[need].part], info.part))
        return;
      auto it = llvm::find_if(
          waiting, [&](const auto &entry) { return entry.first == need; });
      if (it == waiting.end() || --it->second > 0)
        return;
      total -= table.parts[table.tasks[need].part].saved;
      auto count = live.find(info.microBatch);
      if (--count->second == 0)
        live.erase(count);
      auto chunk = liveOfStages.find({stage, info.microBatch});
      if (--chunk->second == 0)
        liveOfStages.erase(chunk);
      waiting.erase(it);
    });
    int readers = table.readers[info.part].size();
    if (table.parts[info.part].saved && readers) {
      total += table.parts[info.part].saved;
      waiting.push_back({task, readers});
      ++live[info.microBatch];
      ++liveOfStages[{stage, info.microBatch}];
    }
  }
}

std::optional<std::pair<int, int>>
SavedReplay::oldest(llvm::function_ref<bool(int)> accept) const {
  for (auto [task, readers] : waiting) {
    const Task &info = table.tasks[task];
    int reader = table.task(table.readers[info.part].back(), info.microBatch,
                            info.device);
    if (accept(reader))
      return std::make_pair(task, reader);
  }
  return std::nullopt;
}

std::optional<UpdateReplay::Update> UpdateReplay::run(const Node &node,
                                                      int number) {
  if (node.kind != Action::Kind::Run || node.microBatch < 0)
    return std::nullopt;
  const PartInfo &part = table.parts[node.part];
  if (!part.reads && !part.updates)
    return std::nullopt;
  Stage &stage = stages[part.stage];
  auto &[version, firstNode] =
      stage.read.try_emplace(node.microBatch, stage.updates, number)
          .first->second;
  if (!part.updates)
    return std::nullopt;
  Update update{stage.updates++ - version, firstNode};
  stage.read.erase(node.microBatch);
  stage.updated[node.microBatch] = number;
  return update;
}

int UpdateReplay::releasingUpdate(const Node &node) const {
  if (node.kind != Action::Kind::Run || node.microBatch < 0 ||
      !table.parts[node.part].reads)
    return -1;
  auto stage = stages.find(table.parts[node.part].stage);
  if (stage == stages.end())
    return -1;
  auto it = stage->second.updated.find(node.microBatch);
  return it == stage->second.updated.end() ? -1 : it->second;
}

int64_t UpdateReplay::versions(int64_t number) const {
  auto it = stages.find(number);
  if (it == stages.end())
    return 0;
  std::set<int64_t> distinct{it->second.updates};
  for (auto &[microBatch, read] : it->second.read)
    distinct.insert(read.first);
  return distinct.size();
}

int64_t UpdateReplay::versions() const {
  int64_t total = 0;
  for (auto &[number, stage] : stages)
    total += versions(number);
  return total;
}
