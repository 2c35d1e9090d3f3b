//===- SavedReplay.h - Saved results and parameter versions -----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Replays of the action list of one position. The results and the parameter
/// versions that a position holds depend on the order of its own actions alone.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SCHEDULING_CHECK_SAVEDREPLAY_H
#define CLEAVE_SCHEDULING_CHECK_SAVEDREPLAY_H

#include "cleave/Scheduling/Check/ResolvedSchedule.h"
#include <set>

namespace cleave::scheduling {

/// The saved results of one position that some reader has not read yet.
class SavedReplay {
public:
  explicit SavedReplay(const TaskTable &table) : table(table) {}

  void run(const Node &node);
  /// The amount saved, in the unit of `PartInfo::saved`.
  int64_t saved() const { return total; }
  /// The number of micro-batches with saved results.
  int64_t inFlight() const { return live.size(); }
  /// The number of pairs of a stage and a micro-batch with saved results.
  int64_t inFlightOfStages() const { return liveOfStages.size(); }
  /// The earliest task with saved results whose last reader `accept` holds for,
  /// and this reader; nothing if there is none.
  std::optional<std::pair<int, int>>
  oldest(llvm::function_ref<bool(int)> accept) const;

private:
  const TaskTable &table;
  /// The tasks whose results are saved, in order, and for each the number of
  /// readers that have not run.
  std::vector<std::pair<int, int>> waiting;
  /// The number of such tasks for each micro-batch, and for each stage and
  /// micro-batch.
  std::map<int64_t, int> live;
  std::map<std::pair<int64_t, int64_t>, int> liveOfStages;
  int64_t total = 0;
};

/// The parameter versions of one position under an asynchronous schedule, in
/// which each micro-batch has its own update.
class UpdateReplay {
public:
  struct Update {
    /// The number of updates since the micro-batch first read the parameters.
    int64_t staleness;
    /// The first node of the micro-batch in the stage.
    int firstNode;
  };

  explicit UpdateReplay(const TaskTable &table) : table(table) {}

  /// Runs a node, whose number is `number`; returns the update that it makes,
  /// if any.
  std::optional<Update> run(const Node &node, int number);
  /// If `node` reads parameters after the update of its own micro-batch, which
  /// released the version that the micro-batch reads: the node of that update.
  /// Otherwise -1.
  int releasingUpdate(const Node &node) const;
  /// The number of versions that a stage holds: the newest one, and those that
  /// micro-batches in flight have read.
  int64_t versions(int64_t stage) const;
  /// The number of versions that all stages hold together.
  int64_t versions() const;

private:
  struct Stage {
    int64_t updates = 0;
    /// For each micro-batch in flight, the version and the first node.
    std::map<int64_t, std::pair<int64_t, int>> read;
    /// For each micro-batch whose update has run, the node of the update.
    std::map<int64_t, int> updated;
  };
  const TaskTable &table;
  std::map<int64_t, Stage> stages;
};

} // namespace cleave::scheduling

#endif // CLEAVE_SCHEDULING_CHECK_SAVEDREPLAY_H
