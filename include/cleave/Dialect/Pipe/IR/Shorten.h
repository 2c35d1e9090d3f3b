//===- Shorten.h - A regular schedule of fewer micro-batches ----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_PIPE_IR_SHORTEN_H
#define CLEAVE_DIALECT_PIPE_IR_SHORTEN_H

#include "cleave/Dialect/Pipe/IR/Schedule.h"
#include "llvm/ADT/STLFunctionalExtras.h"

namespace cleave::pipe {

/// A schedule that lacks `removed` micro-batches of another one, in which each
/// device does the same for one micro-batch after another: some of these
/// repetitions are left out, and what follows them has smaller numbers.
struct ShortSchedule {
  /// What an action of `schedule` is in the other one.
  struct Place {
    /// The repetition of the device that it belongs to, or -1.
    int32_t region = -1;
    /// By how much its micro-batch is smaller here.
    int64_t later = 0;
  };
  Schedule schedule;
  /// Of each device, and each of its actions.
  std::vector<std::vector<Place>> places;
  int64_t removed = 0;
};

/// A shorter form of `schedule`, which keeps so many repetitions that some see
/// as many micro-batches under way as any, before and behind them. `removed` is
/// 0 where a device does not repeat itself often enough; else it is a multiple
/// of 12, so that what comes in turns of 2, 3, 4 or 6 ends alike. A micro-batch
/// is under way from its first to its last action that `holds` something.
ShortSchedule shorten(const Schedule &schedule, int64_t microBatches,
                      llvm::function_ref<bool(const Action &)> holds);

} // namespace cleave::pipe

#endif // CLEAVE_DIALECT_PIPE_IR_SHORTEN_H
