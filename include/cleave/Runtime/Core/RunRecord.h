//===- RunRecord.h - What a run of an entry did -----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CORE_RUNRECORD_H
#define CLEAVE_RUNTIME_CORE_RUNRECORD_H

#include "cleave/Executable/Format/Program.h"
#include "cleave/Runtime/Core/Device.h"
#include <array>
#include <string>

namespace cleave::runtime {

/// Nanoseconds of the machine's monotonic clock, the same for all ranks on it.
int64_t monotonicNanoseconds();

/// Nanoseconds by part of the step.
struct Breakdown {
  std::array<int64_t, CLEAVE_TIME_CLASSES> nanoseconds{};
  int64_t &operator[](TimeClass c) {
    return nanoseconds[static_cast<size_t>(c)];
  }
  int64_t operator[](TimeClass c) const {
    return nanoseconds[static_cast<size_t>(c)];
  }
};

/// The bytes that a run has fetched from the second tier and evicted to it.
struct Offloaded {
  int64_t fetched = 0, evicted = 0;
};

/// One command of one action, with its time.
struct TraceEvent {
  const Command *command = nullptr;
  const Action *action = nullptr;
  /// The index of its run among the traced runs.
  int32_t run = 0;
  /// The start in nanoseconds since the trace began, and the duration.
  int64_t start = 0, duration = 0;
};

/// Why a run of an entry has ended early.
struct Stop {
  std::string message;
  /// Whether a check of this rank has failed, not one of another rank.
  bool own = false;
  /// Whether all checks of this rank that have failed skip the step.
  bool skips = false;
  /// Whether no other run is possible: the communicator has failed, or the
  /// second tier.
  bool broken = false;
  /// Whether a check of this rank has failed since a buffer had too few rows.
  bool room = false;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CORE_RUNRECORD_H
