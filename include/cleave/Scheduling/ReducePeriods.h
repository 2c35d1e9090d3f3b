//===- ReducePeriods.h - Schedules of fewer periods -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SCHEDULING_REDUCEPERIODS_H
#define CLEAVE_SCHEDULING_REDUCEPERIODS_H

#include "cleave/Scheduling/Schedule.h"
#include "llvm/ADT/STLFunctionalExtras.h"

namespace cleave::scheduling {

/// A schedule that is periodic at each position, with some of its periods left
/// out: it has `removed` micro-batches less than the original one, and actions
/// after the periods left out have smaller micro-batches.
struct ReducedSchedule {
  /// How an action of `schedule` relates to the original schedule.
  struct Place {
    /// The periodic region of its position that it belongs to, or -1.
    int32_t region = -1;
    /// Its micro-batch in the original schedule, less its micro-batch here.
    int64_t later = 0;
  };
  Schedule schedule;
  /// For each position, the place of each of its actions.
  std::vector<std::vector<Place>> places;
  int64_t removed = 0;
};

/// Leaves out periods of `schedule`, and keeps so many of them that the steady
/// state, with the most micro-batches in flight, is still reached and left.
/// `removed` is 0 where a position has too few periods; otherwise it is
/// divisible by 12, so that whatever alternates every 2, 3, 4 or 6
/// micro-batches ends as in the original. A micro-batch is in flight from its
/// first to its last action for which `holds` is true.
ReducedSchedule reducePeriods(const Schedule &schedule, int64_t microBatches,
                              llvm::function_ref<bool(const Action &)> holds);

} // namespace cleave::scheduling

#endif // CLEAVE_SCHEDULING_REDUCEPERIODS_H
