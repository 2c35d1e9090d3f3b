//===- Replay.h - What a device holds along its list ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// What a device holds depends on the order of its own actions alone.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_IR_REPLAY_H
#define CLEAVE_LIB_DIALECT_PIPE_IR_REPLAY_H

#include "Resolve.h"
#include <set>

namespace cleave::pipe {

/// What runs of one device have saved and not all readers have read.
class SavedReplay {
public:
  explicit SavedReplay(const TaskTable &table) : table(table) {}

  void run(const Node &node);
  int64_t saved() const { return total; }
  /// How many micro-batches have something saved.
  int64_t inFlight() const { return live.size(); }
  /// The same, counted in each stage.
  int64_t inFlightOfStages() const { return liveOfStages.size(); }
  /// Of what is saved, the task that ran first, and one that will read it and
  /// for which `accept` holds; nothing if there is none.
  std::optional<std::pair<int, int>>
  oldest(llvm::function_ref<bool(int)> accept) const;

private:
  const TaskTable &table;
  /// Tasks whose results are saved, in order; how many readers each waits for.
  std::vector<std::pair<int, int>> waiting;
  /// For each micro-batch, how many such tasks it has; and in each stage.
  std::map<int64_t, int> live;
  std::map<std::pair<int64_t, int64_t>, int> liveOfStages;
  int64_t total = 0;
};

/// Which version of its parameters each micro-batch of a device reads, where
/// they are updated for each.
class UpdateReplay {
public:
  struct Update {
    /// How many updates came since the micro-batch read the parameters.
    int64_t staleness;
    /// The first node of the micro-batch in the stage.
    int firstNode;
  };

  explicit UpdateReplay(const TaskTable &table) : table(table) {}

  /// Returns what is to be said of an update.
  std::optional<Update> run(const Node &node, int number);
  /// Of a node that reads parameters, that with the micro-batch's own update
  /// where this has run: nothing keeps the version that the others read. Else
  /// -1.
  int letGo(const Node &node) const;
  /// How many versions a stage holds: the newest one, and those that
  /// micro-batches in flight have read.
  int64_t versions(int64_t stage) const;
  /// Those of all stages.
  int64_t versions() const;

private:
  struct Stage {
    int64_t updates = 0;
    /// For each micro-batch in flight, the version and the first node.
    std::map<int64_t, std::pair<int64_t, int>> read;
    /// For each micro-batch that has been updated for, the node.
    std::map<int64_t, int> updated;
  };
  const TaskTable &table;
  std::map<int64_t, Stage> stages;
};

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_IR_REPLAY_H
