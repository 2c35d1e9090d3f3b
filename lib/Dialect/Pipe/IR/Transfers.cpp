//===- Transfers.cpp - Sends and receives of a schedule -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Pipe/IR/Transfers.h"
#include "Resolve.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave::pipe;

namespace {
/// Something that happens at one moment of the time line.
struct Event {
  int64_t time;
  /// A transfer stands before what starts at the same moment.
  bool isRun;
  /// The place among the events of its kind, as they were found.
  int number;
  int node;
  /// Of a transfer, where it goes.
  int64_t to = -1;

  bool operator<(const Event &other) const {
    return std::tie(time, isRun, number) <
           std::tie(other.time, other.isRun, other.number);
  }
};
} // namespace

/// The stage that stands for a device: the reader's own, or another one of the
/// device that receives this micro-batch.
static int64_t stageOn(const TaskTable &table, int64_t device,
                       int64_t microBatch, int64_t reader) {
  if (table.map.device(reader, microBatch) == device)
    return reader;
  for (int64_t stage = 0; stage < table.stages; ++stage)
    if (table.map.device(stage, microBatch) == device)
      return stage;
  return reader;
}

/// How long a run takes on the time line: what comes before forward takes next
/// to none, so that devices do it before others send them anything.
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

/// Whether nothing is sent for the run before all else is done.
static bool isLate(const TaskTable &table, const Node &node) {
  return llvm::all_of(node.tasks, [&](int task) {
    return table.parts[table.tasks[task].part].late;
  });
}

/// The runs of a schedule that has been verified, on the time line.
static std::vector<Event> placeRuns(const ResolvedSchedule &schedule) {
  std::vector<Event> line;
  std::vector<int64_t> free(schedule.deviceCount(), 0);
  std::vector<int64_t> end(schedule.nodes.size(), 0);
  Machine(schedule).run([&](llvm::ArrayRef<int> nodes) {
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

std::optional<Schedule> cleave::pipe::insertTransfers(
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
    error = "the schedule has transfers; leave them out, so that all can be "
            "placed";
    return std::nullopt;
  }

  std::vector<Event> line = placeRuns(resolved);
  // What each device reads of others: the node, and the moment it is there.
  std::map<std::pair<int, int64_t>, Event> transfers;
  std::vector<int64_t> end(resolved.nodes.size());
  // When nobody has anything left to do but what is late.
  int64_t meeting = 0;
  for (const Event &run : line) {
    const Node &node = resolved.nodes[run.node];
    end[run.node] = run.time + duration(resolved, node);
    if (!isLate(table, node))
      meeting = std::max(meeting, end[run.node]);
  }
  for (Event &run : line)
    if (isLate(table, resolved.nodes[run.node]))
      run.time = meeting;
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
                            Event{isLate(table, node) ? meeting : end[from],
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
    std::vector<Action> &own = result.devices[node.device];
    if (event.isRun) {
      own.push_back(*node.action);
      continue;
    }
    own.push_back(node.action->send(event.to));
    result.devices[map.device(event.to, node.microBatch)].push_back(
        node.action->receive(event.to));
  }
  return result;
}
