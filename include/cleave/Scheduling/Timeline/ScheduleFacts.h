//===- ScheduleFacts.h - What a schedule costs ------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SCHEDULING_TIMELINE_SCHEDULEFACTS_H
#define CLEAVE_SCHEDULING_TIMELINE_SCHEDULEFACTS_H

#include "cleave/Machines/MachineModel.h"
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace cleave::scheduling {

/// The times, memory and work of a simulated schedule: what planning decides
/// by, and what reports render.
struct ScheduleFacts {
  /// Versions of parameters under an asynchronous schedule: the newest one, and
  /// those that micro-batches in flight have read.
  struct Versions {
    int64_t count = 0, staleness = 0, bytes = 0;
  };
  struct Stage {
    int64_t position = 0;
    /// Seconds of a run of each part, by its name.
    std::map<std::string, double> seconds;
    /// Of all parts that run for each micro-batch: seconds, as a share of those
    /// of all stages, and work.
    double costShare = 0;
    machines::Work work;
    /// Parameters that parts of the stage read.
    int64_t parameters = 0, parameterBytes = 0;
    /// Bytes saved for backward of a micro-batch; the most micro-batches with
    /// saved results at a time, and the most bytes.
    int64_t savedBytes = 0, peakInFlight = 0, peakSavedBytes = 0;
    std::optional<Versions> versions;
  };
  struct Position {
    std::vector<int64_t> stages;
    /// The end of its last action, the seconds of its runs, and those in which
    /// it is idle between its first and its last run.
    double end = 0, busy = 0, idleBetween = 0;
    /// See `Simulation`.
    int64_t peakInFlight = 0, peakChunks = 0, peakSavedBytes = 0;
  };
  std::vector<Stage> stages;
  std::vector<Position> positions;
  /// Seconds of a step, of each further one, and of the busiest position.
  double makespan = 0, period = 0, ideal = 0;
  /// Values that positions send to each other in a step.
  int64_t transfers = 0;
};

} // namespace cleave::scheduling

#endif // CLEAVE_SCHEDULING_TIMELINE_SCHEDULEFACTS_H
