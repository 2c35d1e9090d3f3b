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
#include "cleave/Runtime/Contraction.h"
#include "cleave/Runtime/Movement.h"
#include <array>
#include <optional>
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

/// One command of one action, as it ran.
struct TraceEvent {
  const Command *command = nullptr;
  int32_t microBatch = 0;
  /// Nanoseconds since the trace began, and how long.
  int64_t start = 0, duration = 0;
};

/// Runs entries. Actions and references are resolved to pointers once, so that
/// a step allocates nothing and decides nothing.
class Executor {
public:
  /// The artifact, the arena and the team must outlive the executor. The arena
  /// must hold zeros if the tuner measures; it does afterwards.
  static llvm::Expected<Executor> create(const Artifact &artifact,
                                         const Arena &arena,
                                         const ThreadTeam &team,
                                         ContractionTuner &tuner);

  /// Runs an entry. The message of a `Check` that failed, if one did: nothing
  /// after it has run.
  std::optional<llvm::StringRef> run(llvm::StringRef entry);

  bool hasEntry(llvm::StringRef entry) const {
    return entries.count(entry.str()) != 0;
  }

  /// Whether to measure commands; off at first.
  void setTiming(bool on) { timing = on; }
  const Breakdown &getBreakdown() const { return breakdown; }

  /// Starts to record up to `events` commands, until stopped.
  void startTrace(size_t events);
  const std::vector<TraceEvent> &getTrace() const { return trace; }
  /// Nanoseconds since the trace began, now.
  int64_t traceClock() const;

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
  struct Check {
    const char *flag;
  };
  struct Step {
    const Command *command;
    int32_t microBatch;
    std::variant<Kernel, Contraction, Attention, Scatter, Copy, Fill, Check>
        what;
  };

  Executor(const ThreadTeam &team) : team(&team) {}
  llvm::Expected<Step> resolve(const Artifact &artifact, const Arena &arena,
                               const Part &part, const Action &action,
                               const Command &command, ContractionTuner &tuner);
  /// False if a check failed.
  bool execute(const Step &step) const;

  const ThreadTeam *team;
  std::map<std::string, std::vector<Step>> entries;
  Arena workspace;
  bool timing = false;
  Breakdown breakdown;
  std::vector<TraceEvent> trace;
  size_t traceCapacity = 0;
  int64_t traceStart = 0;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_EXECUTOR_H
