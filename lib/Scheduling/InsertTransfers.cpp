//===- InsertTransfers.cpp - Sends and receives of a schedule -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/InsertTransfers.h"
#include "cleave/Scheduling/Check/ResolvedSchedule.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave::scheduling;

namespace {
/// An event of the time line: a run or a transfer.
struct Event {
  int64_t time;
  /// Transfers come before runs of the same time.
  bool isRun;
  /// The number of the event among those of its kind, which breaks ties.
  int number;
  int node;
  /// For a transfer, the stage that receives.
  int64_t to = -1;

  bool operator<(const Event &other) const {
    return std::tie(time, isRun, number) <
           std::tie(other.time, other.isRun, other.number);
  }
};
} // namespace

/// The stage that names the position `device` as a receiver: that of the
/// reader, or else the first stage at this position for the micro-batch.
static int64_t stageOn(const TaskTable &table, int64_t device,
                       int64_t microBatch, int64_t reader) {
  if (table.map.device(reader, microBatch) == device)
    return reader;
  for (int64_t stage = 0; stage < table.stages; ++stage)
    if (table.map.device(stage, microBatch) == device)
      return stage;
  return reader;
}

/// The duration of a run on the time line. Parts before forward take almost no
/// time, so that positions run them before anything is sent to them.
static int64_t duration(const ResolvedSchedule &schedule, const Node &node) {
  constexpr int64_t kTask = 1 << 20;
  const TaskTable &table = *schedule.table;
  int64_t sum = 0;
  for (int task : node.tasks) {
    const PartInfo &part = table.parts[table.tasks[task].part];
    sum += part.once || isForwardOrBackward(part.name) ? kTask : 1;
  }
  return sum;
}

/// Whether the values that the run reads are sent only after all other work
/// (`PartInfo::late`).
static bool isLate(const TaskTable &table, const Node &node) {
  return llvm::all_of(node.tasks, [&](int task) {
    return table.parts[table.tasks[task].part].late;
  });
}

/// Puts the runs of a verified schedule on the time line.
static std::vector<Event> placeRuns(const ResolvedSchedule &schedule) {
  std::vector<Event> line;
  std::vector<int64_t> free(schedule.deviceCount(), 0);
  std::vector<int64_t> end(schedule.nodes.size(), 0);
  ScheduleRunner(schedule).run([&](llvm::ArrayRef<int> nodes) {
    int64_t start = 0;
    for (int n : nodes) {
      const Node &node = schedule.nodes[n];
      start = std::max(start, free[node.device]);
      for (int need : node.needs)
        start = std::max(start, end[schedule.runner[need]]);
    }
    for (int n : nodes) {
      const Node &node = schedule.nodes[n];
      end[n] = free[node.device] = start + duration(schedule, node);
      line.push_back({start, true, static_cast<int>(line.size()), n});
    }
  });
  return line;
}

std::optional<Schedule> cleave::scheduling::insertTransfers(
    const Schedule &schedule, llvm::ArrayRef<PartInfo> parts,
    int64_t microBatches, const StageMap &map, std::string &error,
    llvm::ArrayRef<Collective> collectives) {
  VerifyOptions options;
  options.collectives.assign(collectives.begin(), collectives.end());
  Violation violation;
  auto verified = VerifiedSchedule::create(schedule, parts, microBatches, map,
                                           options, violation);
  if (!verified) {
    error = std::move(violation.text);
    return std::nullopt;
  }
  const TaskTable &table = verified->table;
  const ResolvedSchedule &resolved = verified->resolved;
  if (resolved.hasTransfers) {
    error = "the schedule already has transfers; leave all of them out, or "
            "write all of them";
    return std::nullopt;
  }

  std::vector<Event> line = placeRuns(resolved);
  // The transfers, by the node whose results are sent and the receiving
  // position.
  std::map<std::pair<int, int64_t>, Event> transfers;
  std::vector<int64_t> end(resolved.nodes.size());
  // The time when all work that is not late is done.
  int64_t workDone = 0;
  for (const Event &run : line) {
    const Node &node = resolved.nodes[run.node];
    end[run.node] = run.time + duration(resolved, node);
    if (!isLate(table, node))
      workDone = std::max(workDone, end[run.node]);
  }
  for (Event &run : line)
    if (isLate(table, resolved.nodes[run.node]))
      run.time = workDone;
  for (const Event &run : line) {
    const Node &node = resolved.nodes[run.node];
    for (int need : node.needs) {
      int from = resolved.runner[need];
      if (table.tasks[need].device == node.device)
        continue;
      int64_t to = stageOn(table, node.device, resolved.nodes[from].microBatch,
                           node.action->stage);
      int number = transfers.size();
      transfers.try_emplace({from, node.device},
                            Event{isLate(table, node) ? workDone : end[from],
                                  false, number, from, to});
    }
  }
  for (auto &[key, event] : transfers)
    line.push_back(event);
  llvm::sort(line);

  Schedule result;
  result.devices.assign(schedule.devices.size(), {});
  for (const Event &event : line) {
    const Node &node = resolved.nodes[event.node];
    std::vector<Action> &actions = result.devices[node.device];
    if (event.isRun) {
      actions.push_back(*node.action);
      continue;
    }
    actions.push_back(node.action->send(event.to));
    result.devices[map.device(event.to, node.microBatch)].push_back(
        node.action->receive(event.to));
  }
  return result;
}
