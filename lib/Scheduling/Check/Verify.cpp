//===- Verify.cpp - Verification of schedules -----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CommunicationOrder.h"
#include "cleave/Scheduling/Check/SavedReplay.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FormatVariadic.h"

using namespace cleave::scheduling;
using Found = std::optional<Violation>;

/// Checks that each action comes after the actions whose results it reads or
/// sends, as far as one position can tell: by the actions that it ran and, if
/// there are transfers, received from.
static Found checkReads(const ResolvedSchedule &schedule) {
  auto about = [&](std::string text, std::initializer_list<int> nodes) {
    return aboutNodes(schedule, std::move(text), nodes);
  };
  const TaskTable &table = *schedule.table;
  // The last position that has run or received each task.
  std::vector<int64_t> seen(table.tasks.size(), -1);
  for (int64_t d = 0; d < schedule.deviceCount(); ++d) {
    int n = schedule.begin[d];
    for (const Node &node : schedule.device(d)) {
      const int number = n++;
      auto name = [&] { return schedule.str(number); };
      if (node.kind == Action::Kind::Send)
        for (int task : node.tasks)
          if (seen[task] != d)
            return about(name() + " sends results of " +
                             node.action->run().str() +
                             ", which has not run; move it after that",
                         {number, schedule.runner[task]});
      for (int need : node.needs) {
        if (seen[need] == d)
          continue;
        Action wanted = table.action(need);
        if (schedule.runner[need] < 0)
          return Violation{wanted.str() + " never runs, and " + name() +
                               " reads its results",
                           {{table.tasks[need].device,
                             schedule.device(table.tasks[need].device).size()},
                            schedule.ref(number)}};
        if (table.tasks[need].device == d)
          return about(name() + " reads results of " + wanted.str() +
                           ", which has not run",
                       {number, schedule.runner[need]});
        if (!schedule.hasTransfers)
          continue;
        int64_t to = node.action->stage;
        if (int runner = schedule.runner[need]; runner >= 0)
          wanted = schedule.nodes[runner].action->run();
        return about(name() + " reads results of " + wanted.str() +
                         ", which pipeline position " + std::to_string(d) +
                         " has not received; write " +
                         wanted.receive(to).str() + " before it and " +
                         wanted.send(to).str() + " after " + wanted.str(),
                     {number, schedule.runner[need]});
      }
      if (node.kind != Action::Kind::Send)
        for (int task : node.tasks)
          seen[task] = d;
    }
  }
  return std::nullopt;
}

/// Whether `task` depends on one of `others`, directly or indirectly.
static bool needsAny(const TaskTable &table, int task,
                     llvm::ArrayRef<int> others) {
  std::set<int> seen{task};
  std::vector<int> work{task};
  while (!work.empty()) {
    int next = work.back();
    work.pop_back();
    if (llvm::is_contained(others, next))
      return true;
    table.forEachNeed(next, [&](int need) {
      if (seen.insert(need).second)
        work.push_back(need);
    });
  }
  return false;
}

/// Checks that no position exceeds the limit on saved results.
static Found checkSaved(const ResolvedSchedule &schedule,
                        const VerifyOptions &options) {
  int64_t limit = *options.savedLimit;
  auto amount = [&](int64_t saved) {
    std::string text = std::to_string(saved);
    if (options.savedInBytes)
      text += llvm::formatv(" bytes ({0:F4} MiB)",
                            static_cast<double>(saved) / (1 << 20));
    return text;
  };
  for (int64_t d = 0; d < schedule.deviceCount(); ++d) {
    SavedReplay replay(*schedule.table);
    int n = schedule.begin[d] - 1;
    for (const Node &node : schedule.device(d)) {
      ++n;
      replay.run(node);
      if (replay.saved() <= limit)
        continue;
      std::string text = schedule.str(n) + " at pipeline position " +
                         std::to_string(d) + " raises the amount saved to " +
                         amount(replay.saved()) + ", over the limit of " +
                         amount(limit);
      if (options.generated)
        return aboutNodes(schedule, std::move(text), {n});
      // A reader that depends on this run cannot be moved before it.
      auto known = replay.oldest([&](int reader) {
        return !needsAny(*schedule.table, reader, node.tasks);
      });
      if (!known)
        return aboutNodes(schedule,
                          text + ", and no action that can be moved before it "
                                 "frees any; raise the limit",
                          {n});
      auto [task, reader] = *known;
      return aboutNodes(schedule,
                        text + "; move " +
                            schedule.str(schedule.runner[reader]) +
                            ", which frees the results of " +
                            schedule.str(schedule.runner[task]) + ", before it",
                        {n, schedule.runner[reader]});
    }
  }
  return std::nullopt;
}

/// Checks that the parts of a micro-batch read parameters before the update of
/// this micro-batch, so that all read one version, and that the staleness does
/// not exceed `limit`.
static Found checkVersions(const ResolvedSchedule &schedule,
                           std::optional<int64_t> limit) {
  for (int64_t d = 0; d < schedule.deviceCount(); ++d) {
    UpdateReplay replay(*schedule.table);
    int n = schedule.begin[d];
    for (const Node &node : schedule.device(d)) {
      int number = n++;
      if (int updated = replay.releasingUpdate(node); updated >= 0)
        return aboutNodes(
            schedule,
            schedule.str(number) + " at pipeline position " +
                std::to_string(d) + " reads parameters after " +
                schedule.str(updated) +
                ", which released the version that the micro-batch reads; move "
                "it before that",
            {number, updated});
      std::optional<UpdateReplay::Update> update = replay.run(node, number);
      if (!update || !limit || update->staleness <= *limit)
        continue;
      return aboutNodes(
          schedule,
          schedule.str(number) + " at pipeline position " + std::to_string(d) +
              " has a staleness of " + std::to_string(update->staleness) +
              " updates since " + schedule.str(update->firstNode) +
              " read the parameters, over the bound of " +
              std::to_string(*limit) + "; move " +
              schedule.str(update->firstNode) + " after more updates",
          {number, update->firstNode});
    }
  }
  return std::nullopt;
}

static Found check(const ResolvedSchedule &schedule,
                   const VerifyOptions &options) {
  if (Found why = checkReads(schedule))
    return why;
  if (int missing = schedule.missingTask(); missing >= 0) {
    // The reference is to the list in which it belongs.
    int64_t device = schedule.table->tasks[missing].device;
    return Violation{schedule.table->action(missing).str() + " never runs",
                     {{device, schedule.device(device).size()}}};
  }
  if (Found why = checkTransferOrder(schedule))
    return why;
  if (Found why = checkCollectiveOrder(schedule))
    return why;
  if (Found why = checkDeadlock(schedule))
    return why;
  if (options.savedLimit)
    if (Found why = checkSaved(schedule, options))
      return why;
  return checkVersions(schedule, options.staleness);
}

std::unique_ptr<VerifiedSchedule>
VerifiedSchedule::create(const Schedule &schedule,
                         llvm::ArrayRef<PartInfo> parts, int64_t microBatches,
                         const StageMap &map, const VerifyOptions &options,
                         Violation &error) {
  auto result = std::make_unique<VerifiedSchedule>();
  std::optional<TaskTable> table =
      TaskTable::create(parts, microBatches, map, error.text);
  if (!table)
    return nullptr;
  result->table = std::move(*table);
  std::optional<ResolvedSchedule> resolved = ResolvedSchedule::create(
      schedule, result->table, options.collectives, error);
  if (!resolved)
    return nullptr;
  result->resolved = std::move(*resolved);
  if (Found why = check(result->resolved, options)) {
    error = std::move(*why);
    return nullptr;
  }
  return result;
}

std::optional<Violation> cleave::scheduling::findViolation(
    const Schedule &schedule, llvm::ArrayRef<PartInfo> parts,
    int64_t microBatches, const StageMap &map, const VerifyOptions &options) {
  Violation error;
  if (VerifiedSchedule::create(schedule, parts, microBatches, map, options,
                               error))
    return std::nullopt;
  return error;
}

std::optional<std::string> cleave::scheduling::verifySchedule(
    const Schedule &schedule, llvm::ArrayRef<PartInfo> parts,
    int64_t microBatches, const StageMap &map, const VerifyOptions &options) {
  if (Found why = findViolation(schedule, parts, microBatches, map, options))
    return why->text;
  return std::nullopt;
}

std::optional<std::string> Schedule::verify(llvm::ArrayRef<PartInfo> parts,
                                            int64_t microBatches) const {
  return verifySchedule(*this, parts, microBatches, StageMap());
}
