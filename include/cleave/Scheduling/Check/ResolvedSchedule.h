//===- ResolvedSchedule.h - Schedules resolved to tasks ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Schedules resolved to tasks. A *task* is one run, at one position, of a part
/// that fuses no others. An action runs one task, or several if its part fuses
/// others.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SCHEDULING_CHECK_RESOLVEDSCHEDULE_H
#define CLEAVE_SCHEDULING_CHECK_RESOLVEDSCHEDULE_H

#include "cleave/Scheduling/Check/Verify.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include <map>
#include <memory>
#include <set>

namespace cleave::scheduling {

struct Task {
  int part;
  int64_t microBatch; ///< -1 for a part that runs once.
  int64_t device;
};

/// The tasks of a pipeline and their dependencies.
class TaskTable {
public:
  /// On failure returns nothing and sets `error`.
  static std::optional<TaskTable> create(llvm::ArrayRef<PartInfo> parts,
                                         int64_t microBatches,
                                         const StageMap &map,
                                         std::string &error);

  /// The part of this name in a stage, or -1.
  int find(int64_t stage, llvm::StringRef name) const;
  /// The task of a part that fuses no others. If the part runs once at each of
  /// several positions: the task at `device` if there is one, else the first.
  int task(int part, int64_t microBatch, int64_t device) const;
  /// The tasks that an action of this part runs.
  llvm::SmallVector<int, 2> tasksOf(int part, int64_t microBatch,
                                    int64_t device) const;
  /// Calls `visit` with all tasks that `task` depends on. Without `all`, leaves
  /// out the tasks of all micro-batches that every run of a part which runs for
  /// each micro-batch depends on.
  void forEachNeed(int task, llvm::function_ref<void(int)> visit,
                   bool all = true) const;
  /// The action that runs a task.
  Action action(int task) const;

  llvm::ArrayRef<PartInfo> parts;
  int64_t microBatches = 0;
  int64_t stages = 0;
  StageMap map;
  std::vector<Task> tasks;
  /// For each part, the parts of its stage that read its saved results.
  std::vector<llvm::SmallVector<int, 2>> readers;
  /// For each part, whether another part fuses it or it fuses others.
  std::vector<bool> fused;

private:
  std::vector<int> first;
  std::map<std::pair<int64_t, std::string>, int, std::less<>> index;
};

/// A resolved action.
struct Node {
  Action::Kind kind = Action::Kind::Run;
  int64_t device = 0;
  int part = 0;
  int64_t microBatch = -1;
  /// The tasks that a run runs, or whose results a transfer sends.
  llvm::SmallVector<int, 2> tasks;
  /// The tasks that a run depends on.
  llvm::SmallVector<int, 4> needs;
  /// The node of the other end of a transfer.
  int partner = -1;
  /// The collective that the node takes part in, or -1.
  int group = -1;
  const Action *action = nullptr;
};

/// A schedule resolved over a table of tasks. The schedule must outlive it.
class ResolvedSchedule {
public:
  /// Looks up all names, pairs the ends of transfers and the members of
  /// collectives, and checks that each task runs at most once, at its own
  /// position. On failure returns nothing and sets `error`.
  static std::optional<ResolvedSchedule>
  create(const Schedule &schedule, const TaskTable &table,
         llvm::ArrayRef<Collective> collectives, Violation &error);

  llvm::ArrayRef<Node> device(int64_t d) const {
    return llvm::ArrayRef(nodes).slice(begin[d], begin[d + 1] - begin[d]);
  }
  int64_t deviceCount() const { return begin.size() - 1; }
  std::string str(int node) const { return nodes[node].action->str(); }
  ActionRef ref(int node) const {
    int64_t device = nodes[node].device;
    return {device, static_cast<size_t>(node - begin[device])};
  }
  /// "" if there is one position, else " at pipeline position <d>".
  std::string place(int node) const;
  /// The first task that no action runs, or -1.
  int missingTask() const;

  const TaskTable *table = nullptr;
  std::vector<Node> nodes;
  /// The first node of each position, and the number of nodes.
  std::vector<int> begin;
  /// For each task, the node that runs it, or -1.
  std::vector<int> runner;
  /// The nodes of each collective, one for each position.
  std::vector<llvm::SmallVector<int, 4>> groups;
  bool hasTransfers = false;

private:
  bool addAction(const Action &action, int64_t device, Violation &error);
  /// Reduces dependencies on all micro-batches of a part at another position to
  /// the one on its last run, which is all that has to be received.
  void needLastOnly();
  bool pairTransfers(Violation &error);
  bool formGroups(llvm::ArrayRef<Collective> collectives, Violation &error);

  /// The parts that each position has run so far. Only the first run of a part
  /// records dependencies on all micro-batches: later runs come after it.
  std::set<std::pair<int, int64_t>> ran;
};

/// A schedule that has passed the verifier.
struct VerifiedSchedule {
  /// Verifies `schedule`. On failure returns null and sets `error`. The
  /// schedule and the parts must outlive the result.
  static std::unique_ptr<VerifiedSchedule>
  create(const Schedule &schedule, llvm::ArrayRef<PartInfo> parts,
         int64_t microBatches, const StageMap &map,
         const VerifyOptions &options, Violation &error);

  TaskTable table;
  ResolvedSchedule resolved;
};

/// Executes the actions of all positions as their dependencies, rendezvous and
/// collectives allow. An action that can run is never disabled by another one,
/// so the set of actions that run does not depend on the order of the steps.
class ScheduleRunner {
public:
  explicit ScheduleRunner(const ResolvedSchedule &schedule);

  /// Runs until all actions are done or none can run. Calls `visit` once for
  /// each event: with the node of a run, or all nodes of a transfer or
  /// collective.
  void run(llvm::function_ref<void(llvm::ArrayRef<int>)> visit);
  bool finished() const;
  /// After a `run` that did not finish: the cycle of waiting actions.
  Violation describeCycle() const;

private:
  /// The node that the next action of a position waits for, or -1.
  int blocker(int64_t device) const;
  int head(int64_t device) const { return at[device]; }
  bool atEnd(int64_t device) const {
    return at[device] == schedule.begin[device + 1];
  }

  const ResolvedSchedule &schedule;
  std::vector<int> at;
  std::vector<bool> done;
};

/// Runs `schedule`; returns the cycle of waiting actions if it deadlocks.
std::optional<Violation> checkDeadlock(const ResolvedSchedule &schedule);

} // namespace cleave::scheduling

#endif // CLEAVE_SCHEDULING_CHECK_RESOLVEDSCHEDULE_H
