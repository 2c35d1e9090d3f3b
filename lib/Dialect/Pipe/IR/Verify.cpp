//===- Verify.cpp - Whether a schedule can run ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Replay.h"
#include "Resolve.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave::pipe;
using Violation = std::optional<std::string>;

/// Each action comes after what it reads or sends, as far as its own device
/// shows: what that ran and, where there are transfers, what it received.
static Violation checkReads(const ResolvedSchedule &schedule) {
  const TaskTable &table = *schedule.table;
  std::vector<int64_t> seen(table.tasks.size(), -1); // By which device.
  for (int64_t d = 0; d < schedule.deviceCount(); ++d) {
    int n = schedule.begin[d];
    for (const Node &node : schedule.device(d)) {
      const std::string name = schedule.str(n++);
      if (node.kind == Action::Kind::Send)
        for (int task : node.tasks)
          if (seen[task] != d)
            return name + " sends results of " + node.action->run().str() +
                   ", which has not run; move it behind that";
      for (int need : node.needs) {
        if (seen[need] == d)
          continue;
        Action wanted = table.action(need);
        if (table.tasks[need].device == d)
          return name + " reads results of " + wanted.str() +
                 ", which has not run";
        if (!schedule.hasTransfers)
          continue;
        int64_t to = node.action->stage;
        if (int runner = schedule.runner[need]; runner >= 0)
          wanted = schedule.nodes[runner].action->run();
        return name + " reads results of " + wanted.str() + ", which device " +
               std::to_string(d) + " has not received; write " +
               wanted.receive(to).str() + " before it and " +
               wanted.send(to).str() + " behind " + wanted.str();
      }
      if (node.kind != Action::Kind::Send)
        for (int task : node.tasks)
          seen[task] = d;
    }
  }
  return std::nullopt;
}

/// Both devices of each pair list their transfers in one order.
static Violation checkTransferOrder(const ResolvedSchedule &schedule) {
  // For each pair of devices, the transfers as each of the two lists them.
  std::map<std::pair<int64_t, int64_t>, std::vector<int>> lists;
  for (auto [n, node] : llvm::enumerate(schedule.nodes))
    if (node.partner >= 0)
      lists[{node.device, schedule.nodes[node.partner].device}].push_back(n);
  for (auto &[pair, mine] : lists) {
    if (pair.first > pair.second)
      continue;
    const std::vector<int> &theirs = lists[{pair.second, pair.first}];
    for (auto [a, b] : llvm::zip_equal(mine, theirs))
      if (schedule.nodes[a].partner != b)
        return "devices " + std::to_string(pair.first) + " and " +
               std::to_string(pair.second) +
               " list their transfers in different orders: " + schedule.str(a) +
               schedule.place(a) + " stands where " + schedule.str(b) +
               schedule.place(b) +
               " does; put both in one order on both devices";
  }
  return std::nullopt;
}

/// All members of a group list its collectives in one order.
static Violation checkCollectiveOrder(const ResolvedSchedule &schedule) {
  // By members, the nodes of each of them.
  std::map<std::vector<int64_t>, std::map<int64_t, std::vector<int>>> lists;
  for (auto [n, node] : llvm::enumerate(schedule.nodes)) {
    if (node.group < 0)
      continue;
    std::vector<int64_t> members;
    for (int other : schedule.groups[node.group])
      members.push_back(schedule.nodes[other].device);
    lists[members][node.device].push_back(n);
  }
  for (auto &[members, byDevice] : lists) {
    const std::vector<int> &mine = byDevice.begin()->second;
    for (auto &[device, theirs] : byDevice)
      for (auto [a, b] : llvm::zip_equal(mine, theirs))
        if (schedule.nodes[a].group != schedule.nodes[b].group)
          return "the collectives of devices " +
                 std::to_string(members.front()) + " and " +
                 std::to_string(device) +
                 " differ in order: " + schedule.str(a) + schedule.place(a) +
                 " stands where " + schedule.str(b) + schedule.place(b) +
                 " does; put both in one order on all members";
  }
  return std::nullopt;
}

static Violation checkSaved(const ResolvedSchedule &schedule, int64_t limit) {
  for (int64_t d = 0; d < schedule.deviceCount(); ++d) {
    SavedReplay replay(*schedule.table);
    int n = schedule.begin[d];
    for (const Node &node : schedule.device(d)) {
      replay.run(node);
      if (replay.saved() > limit) {
        auto [task, reader] = replay.oldest();
        return schedule.str(n) + " of device " + std::to_string(d) +
               " brings what is saved to " + std::to_string(replay.saved()) +
               ", over the limit of " + std::to_string(limit) + "; move " +
               schedule.str(schedule.runner[reader]) + ", which frees what " +
               schedule.str(schedule.runner[task]) + " saved, before it";
      }
      ++n;
    }
  }
  return std::nullopt;
}

static Violation checkStaleness(const ResolvedSchedule &schedule,
                                int64_t limit) {
  for (int64_t d = 0; d < schedule.deviceCount(); ++d) {
    UpdateReplay replay(*schedule.table);
    int n = schedule.begin[d];
    for (const Node &node : schedule.device(d)) {
      int number = n++;
      std::optional<UpdateReplay::Update> update = replay.run(node, number);
      if (!update || update->staleness <= limit)
        continue;
      return schedule.str(number) + " of device " + std::to_string(d) +
             " comes " + std::to_string(update->staleness) + " updates after " +
             schedule.str(update->firstNode) +
             " read the parameters, over the bound of " +
             std::to_string(limit) + "; move " +
             schedule.str(update->firstNode) + " behind more of them";
    }
  }
  return std::nullopt;
}

Violation cleave::pipe::verifySchedule(const Schedule &schedule,
                                       llvm::ArrayRef<PartInfo> parts,
                                       int64_t microBatches,
                                       const StageMap &map,
                                       const VerifyOptions &options) {
  std::string error;
  std::optional<TaskTable> table =
      TaskTable::create(parts, microBatches, map, error);
  if (!table)
    return error;
  std::optional<ResolvedSchedule> resolved =
      ResolvedSchedule::create(schedule, *table, options.collectives, error);
  if (!resolved)
    return error;
  if (Violation why = checkReads(*resolved))
    return why;
  if (int missing = resolved->missingTask(); missing >= 0)
    return table->action(missing).str() + " never runs";
  if (Violation why = checkTransferOrder(*resolved))
    return why;
  if (Violation why = checkCollectiveOrder(*resolved))
    return why;
  Machine machine(*resolved);
  machine.run([](llvm::ArrayRef<int>) {});
  if (!machine.finished())
    return machine.describeCycle();
  if (options.savedLimit)
    if (Violation why = checkSaved(*resolved, *options.savedLimit))
      return why;
  if (options.staleness)
    return checkStaleness(*resolved, *options.staleness);
  return std::nullopt;
}

Violation Schedule::verify(llvm::ArrayRef<PartInfo> parts,
                           int64_t microBatches) const {
  return verifySchedule(*this, parts, microBatches, StageMap());
}
