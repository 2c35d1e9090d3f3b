//===- Executor.h - Walking the command table -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_EXECUTOR_H
#define CLEAVE_RUNTIME_EXECUTOR_H

#include "cleave/Runtime/Arena.h"
#include "cleave/Runtime/Artifact.h"
#include "cleave/Runtime/Attention.h"
#include "cleave/Runtime/Communicator.h"
#include "cleave/Runtime/Contraction.h"
#include "cleave/Runtime/Movement.h"
#include "llvm/ADT/ArrayRef.h"
#include <array>
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

/// Nanoseconds by part of the step.
struct Breakdown {
  std::array<int64_t, 5> nanoseconds{};
  int64_t &operator[](TimeClass c) {
    return nanoseconds[static_cast<size_t>(c)];
  }
  int64_t operator[](TimeClass c) const {
    return nanoseconds[static_cast<size_t>(c)];
  }
};

/// What one rank sends. Counted as rings send it: an all-reduce of n elements
/// by N ranks sends 2 (N - 1) n / N of them (which may be a fraction), whatever
/// the communicator does.
struct Sent {
  /// Of tensors, and of exchanges: small tensors share one.
  int64_t count = 0, exchanges = 0;
  double elements = 0, bytes = 0;

  void add(const Sent &other) {
    count += other.count;
    exchanges += other.exchanges;
    elements += other.elements;
    bytes += other.bytes;
  }
};

/// What it sends in an entry, of one kind over the same axes.
struct Communication : Sent {
  std::string kind, axes;
  /// Of the last run, with timing.
  int64_t nanoseconds = 0;
};

/// One command of one action, as it ran.
struct TraceEvent {
  const Command *command = nullptr;
  const Action *action = nullptr;
  /// Which of the traced runs it is of.
  int32_t run = 0;
  /// Nanoseconds since the trace began, and how long.
  int64_t start = 0, duration = 0;
};

/// Why a run of an entry has ended early.
struct Stop {
  std::string message;
  /// A check of this rank has failed, not one of another rank.
  bool own = false;
  /// The communicator has failed: ranks can tell each other nothing any more.
  bool broken = false;
};

/// Runs entries. Actions and references are resolved to pointers once, so that
/// a step allocates nothing and decides nothing.
class Executor {
public:
  /// Finds out how to compute each contraction, alone: an executor that is
  /// created later finds the tuner's choices made.
  static void tune(const Program &program, const Arena &arena,
                   const ThreadTeam &team, ContractionTuner &tuner);

  /// The artifact, the arena, the team and the communicator must outlive the
  /// executor. The arena must hold zeros if the tuner measures; it does
  /// afterwards. All ranks of the communicator, one for each device of the
  /// program, make an executor.
  static llvm::Expected<Executor>
  create(const Artifact &artifact, const Arena &arena, const ThreadTeam &team,
         ContractionTuner &tuner, cleave_communicator *communicator);

  /// Runs an entry, with all ranks. If a `Check` has failed on any of them, its
  /// message, or, on a rank where none has, that of the next one that all come
  /// to: then nothing after that has run on any. Or what ended the
  /// communicator.
  std::optional<Stop> run(llvm::StringRef entry);

  bool hasEntry(llvm::StringRef entry) const {
    return entries.count(entry.str()) != 0;
  }

  /// How many actions of the last run made an update again.
  int64_t countUpdatedAgain() const { return updatedAgain; }

  /// Commands of an entry.
  size_t countCommands(llvm::StringRef entry) const {
    auto it = entries.find(entry.str());
    return it == entries.end() ? 0 : it->second.steps.size();
  }

  /// Whether to measure commands; off at first.
  void setTiming(bool on) { timing = on; }
  const Breakdown &getBreakdown() const { return breakdown; }

  /// What this rank has sent in the last run of an entry; before the first,
  /// what it sends in every run.
  llvm::ArrayRef<Communication> getCommunication(llvm::StringRef entry) const;

  /// Records the commands of the next `runs` runs of an entry. Times count from
  /// `origin`, of `clock`.
  void startTrace(llvm::StringRef entry, int64_t runs, int64_t origin);
  const std::vector<TraceEvent> &getTrace() const { return trace; }
  /// Nanoseconds, the same for all executors of a machine.
  static int64_t clock();

  /// Memory of the library outside of the arena, in bytes. Its larger part is
  /// shared by all executors of the process and settles in the first step.
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
  struct Copy {
    StridedCopy copy;
    const char *src;
    char *dst;
  };
  struct Fill {
    char *dst;
  };
  /// Agrees with the other ranks: `agreed` is what `own` is on all of them.
  /// Without a request, only this rank takes note.
  struct Check {
    cleave_request *request;
    const char *flag;
    char *own;
    const char *agreed;
  };
  struct Exchange {
    cleave_request *request;
    /// Its place among the sums of the entry.
    size_t counter;
    bool ends;
    /// What it adds to them, where it may be left out.
    const Sent *optional = nullptr;
  };
  struct Step {
    const Command *command;
    const Action *action;
    /// The flag that leaves the action out, if any.
    const char *unless;
    bool whenStopped;
    std::variant<Kernel, Contraction, Attention, Scatter, Copy, Fill, Check,
                 Exchange>
        what;
  };
  struct EntrySteps {
    std::vector<Step> steps;
    /// Of the last run, and what every run sends.
    std::vector<Communication> communication, always;
    std::deque<Sent> optional;
  };
  class Resolver;

  explicit Executor(const ThreadTeam &team) : team(&team) {}
  /// False if a check or the communicator failed.
  bool execute(const Step &step);
  /// False, and the end of all ranks, if the library has failed.
  bool checkLibrary() const;
  /// Ends what was under way when `last` stopped the step, on all ranks alike:
  /// the next step starts it again.
  void finishExchanges(llvm::ArrayRef<Step> steps, const Step *last) const;
  /// Does what is for a step that `last` has stopped.
  void takeBack(llvm::ArrayRef<Step> steps, const Step *last);
  /// Starts and ends a request.
  bool exchange(cleave_request *request) const;

  const ThreadTeam *team;
  cleave_communicator *communicator = nullptr;
  std::map<std::string, EntrySteps> entries;
  /// Released before the communicator is closed.
  std::vector<std::unique_ptr<cleave_request, void (*)(cleave_request *)>>
      requests;
  /// For each check, what this rank says and what all agreed on.
  struct Agreement {
    char own, all;
  };
  std::deque<Agreement> agreements;
  /// The first check of the step that failed, if it was deferred.
  const CheckCommand *deferred = nullptr;
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

#endif // CLEAVE_RUNTIME_EXECUTOR_H
