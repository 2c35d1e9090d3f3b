//===- Search.h - A schedule for given costs --------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// `auto`: starts from all generated schedules that fit the pipeline and the
/// limit, and from orders in which each device runs what it can, and improves
/// the best by local search. The result is never slower than any generated
/// schedule that fits, the same for the same input, and for small pipelines of
/// one stage on each device the best there is.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_PIPE_IR_SEARCH_H
#define CLEAVE_DIALECT_PIPE_IR_SEARCH_H

#include "cleave/Dialect/Pipe/IR/Simulate.h"

namespace cleave::pipe {

struct SearchOptions {
  /// The most that a device may have saved at a time, in the unit of
  /// `PartInfo::saved`.
  std::optional<int64_t> savedLimit = std::nullopt;
  /// How stages lie on devices; nothing: whatever is fastest.
  std::optional<StageMap::Kind> map = std::nullopt;
  /// How much to try, in proportion to the time it takes.
  double effort = 1;
};

struct SearchResult {
  Schedule schedule;
  StageMap map;
  double makespan = 0;
  /// Where the search began: a generator's name, or "greedy".
  std::string start;
  /// No order of this map that keeps the limit ends earlier.
  bool optimal = false;
};

/// The parts have the names F, and I and W, or B, or all of them, and form a
/// chain of stages; values that skip stages are allowed. Other parts run before
/// them, where they are read by them, or behind. On failure (there are no such
/// parts, or nothing fits) returns nothing and sets `error`.
std::optional<SearchResult> searchSchedule(llvm::ArrayRef<PartInfo> parts,
                                           int64_t microBatches,
                                           int64_t devices, const Costs &costs,
                                           const SearchOptions &options,
                                           std::string &error);

/// Adds to a schedule all parts that it lacks: in front, in their order and for
/// all micro-batches, those that it reads; the others behind, but before what
/// waits for them.
Schedule addOtherParts(Schedule schedule, llvm::ArrayRef<PartInfo> parts,
                       int64_t microBatches, const StageMap &map);

} // namespace cleave::pipe

#endif // CLEAVE_DIALECT_PIPE_IR_SEARCH_H
