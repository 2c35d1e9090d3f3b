//===- Executor.h - Execution of the command table --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CPU_EXECUTOR_H
#define CLEAVE_RUNTIME_CPU_EXECUTOR_H

#include "cleave/Executable/Format/Artifact.h"
#include "cleave/Runtime/CPU/Attention.h"
#include "cleave/Runtime/CPU/Contraction.h"
#include "cleave/Runtime/CPU/DataMovement.h"
#include "cleave/Runtime/CPU/FileTier.h"
#include "cleave/Runtime/CPU/Grouped.h"
#include "cleave/Runtime/CPU/Orthonormalize.h"
#include "cleave/Runtime/CPU/TopK.h"
#include "cleave/Runtime/Communicator/Requests.h"
#include "cleave/Runtime/Core/Arena.h"
#include "cleave/Runtime/Core/RunRecord.h"
#include "cleave/Runtime/Core/StepChecks.h"
#include "llvm/ADT/ArrayRef.h"
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace cleave::runtime {

using KernelFunction = void (*)(void *const *args, int64_t begin, int64_t end,
                                void *scratch);

/// Runs entries. Actions and references are resolved to pointers once, so that
/// a step does not allocate memory.
class Executor {
public:
  /// Measures how to compute each contraction, without other ranks: an executor
  /// that is created later uses the tuner's choices.
  static void tune(const Program &program, const Arena &arena,
                   const ThreadTeam &team, ContractionTuner &tuner);

  /// The artifact, the arena, the second tier (null if the program has none),
  /// the team and the communicator must outlive the executor. If the tuner
  /// measures, the arena must hold zeros; it does afterwards. All ranks of the
  /// communicator, one for each device of the program, create an executor.
  static llvm::Expected<Executor> create(const Artifact &artifact,
                                         const Arena &arena, FileTier *tier,
                                         const ThreadTeam &team,
                                         ContractionTuner &tuner,
                                         cleave_communicator *communicator);

  /// Finds members of a group that have prepared different collectives.
  /// Collective: all ranks call it.
  llvm::Error compareRequests() const { return requests->compare(); }

  /// Runs an entry; all ranks call it. If a `Check` has failed on any rank,
  /// returns its message, or, on a rank where none has failed, the message of
  /// the next check that all ranks reach: then nothing after that has run on
  /// any rank. If the communicator has failed, returns its error.
  std::optional<Stop> run(llvm::StringRef entry);

  bool hasEntry(llvm::StringRef entry) const {
    return entries.count(entry.str()) != 0;
  }

  /// What the last run has moved between memory and the second tier.
  const Offloaded &getOffloaded() const { return offloaded; }

  /// The number of updates that the last run repeated.
  int64_t countUpdatedAgain() const { return updatedAgain; }

  /// Commands of an entry.
  size_t countCommands(llvm::StringRef entry) const {
    auto it = entries.find(entry.str());
    return it == entries.end() ? 0 : it->second.steps.size();
  }

  /// Turns the measurement of commands on or off; off at first.
  void setTiming(bool on) { timing = on; }
  const Breakdown &getBreakdown() const { return breakdown; }

  /// What this rank has sent in the last run of an entry; before the first run,
  /// what every run sends.
  llvm::ArrayRef<Communication> getCommunication(llvm::StringRef entry) const;

  /// Records the commands of the next `runs` runs of an entry. Times count from
  /// `origin`, a time of `clock`.
  void startTrace(llvm::StringRef entry, int64_t runs, int64_t origin);
  const std::vector<TraceEvent> &getTrace() const { return trace; }

  /// Memory of the library outside of the arena, in bytes. Most of it is shared
  /// by all executors of the process and does not grow after the first step.
  int64_t workspaceBytes() const;

private:
  struct Kernel {
    KernelFunction function, finish;
    std::vector<void *> args;
    void *scratch;
  };
  struct Attention {
    AttentionPointers pointers;
    bool backward;
  };
  struct Scatter {
    const float *rows;
    const void *ids;
    float *out;
  };
  struct Largest {
    const float *in;
    float *values;
    int64_t *indices;
    char *scratch;
  };
  struct Columns {
    const float *in;
    float *out;
    double *scratch;
  };
  struct Copy {
    StridedCopy copy;
    const char *src;
    char *dst;
  };
  struct Fill {
    char *dst;
  };
  /// Agrees with the other ranks: `agreed` is the combination of `own` over all
  /// of them. Without a request, the result is that of this rank.
  struct Check {
    cleave_request *request;
    const char *flag;
    const int64_t *values;
    char *own;
    const char *agreed;
  };
  struct Exchange {
    cleave_request *request = nullptr;
    SentSums::Counter counter;
    bool ends = false;
  };
  /// The beginning or the end of a fetch or an eviction.
  struct Move {
    FileTier::Move *move;
    bool ends;
  };
  struct Step {
    const Command *command;
    const Action *action;
    /// The flag that skips the action, if any.
    const char *unless;
    bool whenStopped;
    std::variant<Kernel, Contraction, Attention, Scatter, Largest, Columns,
                 SortRowsPointers, GroupedPointers, Copy, Fill, Check, Exchange,
                 Move>
        what;
  };
  struct EntrySteps {
    std::vector<Step> steps;
    SentSums sent;
  };
  class Resolver;

  explicit Executor(const ThreadTeam &team) : team(&team) {}
  /// Returns false if a check or the communicator failed.
  bool execute(const Step &step);
  /// If the library has failed, ends all ranks and returns false.
  bool checkLibrary() const;
  /// Ends all ranks because the second tier has failed; returns false.
  bool failTier() const;
  /// Ends the collectives and moves in flight when `last` stopped the step, on
  /// all ranks alike: the next step starts them again.
  void finishCollectives(llvm::ArrayRef<Step> steps, const Step *last) const;
  /// Runs the actions for a step that `last` has stopped.
  void takeBack(llvm::ArrayRef<Step> steps, const Step *last);
  /// The reason why a run has ended at the check `last`.
  Stop stopAt(const CheckCommand &last) const;
  /// Starts and ends a request.
  bool exchange(cleave_request *request) const;

  const ThreadTeam *team;
  cleave_communicator *communicator = nullptr;
  FileTier *tier = nullptr;
  std::deque<FileTier::Move> moves;
  Offloaded offloaded;
  std::map<std::string, EntrySteps> entries;
  /// Released before the communicator is closed.
  std::optional<Requests> requests;
  /// For each check, the result of this rank and the agreed one.
  struct Agreement {
    char own, all;
  };
  std::deque<Agreement> agreements;
  /// Of the step.
  StepChecks checks;
  Arena workspace;
  int64_t updatedAgain = 0;
  bool timing = false;
  Breakdown breakdown;
  std::vector<TraceEvent> trace;
  std::string tracedEntry;
  int64_t tracedRuns = 0, runsToTrace = 0;
  int64_t traceStart = 0;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CPU_EXECUTOR_H
