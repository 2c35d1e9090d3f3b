//===- Resolve.h - A schedule whose names are looked up ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A *task* is one run of a part that does not fuse others, on one device. An
/// action does one task, or several where its part fuses them.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_IR_RESOLVE_H
#define CLEAVE_LIB_DIALECT_PIPE_IR_RESOLVE_H

#include "cleave/Dialect/Pipe/IR/Verify.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include <map>
#include <memory>
#include <set>

namespace cleave::pipe {

struct Task {
  int part;
  int64_t microBatch; ///< -1 for a part that runs once.
  int64_t device;
};

/// The tasks of a pipeline, and what each reads.
class TaskTable {
public:
  /// On failure returns nothing and sets `error`.
  static std::optional<TaskTable> create(llvm::ArrayRef<PartInfo> parts,
                                         int64_t microBatches,
                                         const StageMap &map,
                                         std::string &error);

  int find(int64_t stage, llvm::StringRef name) const;
  /// The task of an unfused part; where it runs once on several devices, that
  /// of `device`, if there is one, or else the first.
  int task(int part, int64_t microBatch, int64_t device) const;
  /// The tasks that an action of this part does.
  llvm::SmallVector<int, 2> tasksOf(int part, int64_t microBatch,
                                    int64_t device) const;
  /// Calls `visit` with all tasks that `task` reads; unless `all`, without what
  /// each micro-batch of its part reads alike, of all micro-batches.
  void forEachNeed(int task, llvm::function_ref<void(int)> visit,
                   bool all = true) const;
  /// The action that does a task.
  Action action(int task) const;

  llvm::ArrayRef<PartInfo> parts;
  int64_t microBatches = 0;
  int64_t stages = 0;
  StageMap map;
  std::vector<Task> tasks;
  /// For each part, the parts of its stage that read what it saves.
  std::vector<llvm::SmallVector<int, 2>> readers;
  /// For each part, whether another fuses it or it fuses others.
  std::vector<bool> fused;

private:
  std::vector<int> first;
  std::map<std::pair<int64_t, std::string>, int, std::less<>> index;
};

/// An action that has been looked up.
struct Node {
  Action::Kind kind = Action::Kind::Run;
  int64_t device = 0;
  int part = 0;
  int64_t microBatch = -1;
  /// Of a run, what it does; of a transfer, what it moves.
  llvm::SmallVector<int, 2> tasks;
  /// Of a run, what it reads.
  llvm::SmallVector<int, 4> needs;
  /// Of a transfer, the other end.
  int partner = -1;
  /// The collective that the node takes part in.
  int group = -1;
  const Action *action = nullptr;
};

/// A schedule over a table of tasks. The schedule must outlive it.
class ResolvedSchedule {
public:
  /// Looks up all names, pairs transfers and members of collectives. Each task
  /// is run at most once, where it belongs. On failure returns nothing and
  /// sets `error`.
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
  /// "" on a single device, else " of device <d>".
  std::string place(int node) const;
  /// The first task that nothing runs, or -1.
  int missingTask() const;

  const TaskTable *table = nullptr;
  std::vector<Node> nodes;
  /// The first node of each device, and the number of nodes.
  std::vector<int> begin;
  /// For each task, the node that runs it, or -1.
  std::vector<int> runner;
  /// The nodes of each collective, one for each device.
  std::vector<llvm::SmallVector<int, 4>> groups;
  bool hasTransfers = false;

private:
  bool addAction(const Action &action, int64_t device, Violation &error);
  /// A device has all micro-batches' results of another one's part with those
  /// of the last run, which is all that it needs to receive.
  void needLastOnly();
  bool pairTransfers(Violation &error);
  bool formGroups(llvm::ArrayRef<Collective> collectives, Violation &error);

  /// The parts that each device has run so far. What a run reads of all
  /// micro-batches, only the first one needs: later ones are behind it.
  std::set<std::pair<int, int64_t>> ran;
};

/// A schedule that can run.
struct VerifiedSchedule {
  /// On failure returns null and sets `error`. The schedule and the parts must
  /// outlive it.
  static std::unique_ptr<VerifiedSchedule>
  create(const Schedule &schedule, llvm::ArrayRef<PartInfo> parts,
         int64_t microBatches, const StageMap &map,
         const VerifyOptions &options, Violation &error);

  TaskTable table;
  ResolvedSchedule resolved;
};

/// Steps through the actions of all devices as their dependencies, rendezvous
/// and collectives allow. What becomes possible stays possible, so the order of
/// the steps does not matter to what is reached.
class Machine {
public:
  explicit Machine(const ResolvedSchedule &schedule);

  /// Runs until all is done or nothing can go on. `visit` is called with each
  /// node, and for a transfer or a collective with all its nodes in turn.
  void run(llvm::function_ref<void(llvm::ArrayRef<int>)> visit);
  bool finished() const;
  /// When it has not finished: who waits for whom.
  Violation describeCycle() const;

private:
  /// The node that the head of a device waits for, or -1.
  int blocker(int64_t device) const;
  int head(int64_t device) const { return at[device]; }
  bool atEnd(int64_t device) const {
    return at[device] == schedule.begin[device + 1];
  }

  const ResolvedSchedule &schedule;
  std::vector<int> at;
  std::vector<bool> done;
};

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_IR_RESOLVE_H
