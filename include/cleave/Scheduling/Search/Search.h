//===- Search.h - Search for a fast schedule --------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The schedule `auto`. The search starts from all generated schedules that fit
/// the pipeline and the limit, and from orders made by list scheduling, and
/// improves the best ones by simulated annealing. The result is never slower
/// than any generated schedule that fits, and is the same for the same input.
/// For small pipelines of one stage at each position, branch and bound proves
/// it optimal or finds the optimum.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SCHEDULING_SEARCH_SEARCH_H
#define CLEAVE_SCHEDULING_SEARCH_SEARCH_H

#include "cleave/Scheduling/Timeline/Simulate.h"

namespace cleave::scheduling {

struct SearchOptions {
  /// The most that a position may have saved at a time, in the unit of
  /// `PartInfo::saved`.
  std::optional<int64_t> savedLimit = std::nullopt;
  /// The assignment of stages to positions; nothing: the fastest one.
  std::optional<StageMap::Kind> map = std::nullopt;
  /// A factor of the number of steps of the search, and of the time it takes.
  double effort = 1;
};

struct SearchResult {
  Schedule schedule;
  StageMap map;
  double makespan = 0;
  /// The starting point of the search: a generator's name, or "greedy".
  std::string start;
  /// Whether it is proved that no order with this map and limit is faster.
  bool optimal = false;
};

/// Searches for the fastest schedule of a pipeline. Each stage must have parts
/// F and B, or F, I and W, or all four; the stages form a chain, in which
/// values may skip stages. Other parts run before these if these read them,
/// otherwise after them. On failure (parts are missing, or no order keeps the
/// limit) returns nothing and sets `error`.
std::optional<SearchResult> searchSchedule(llvm::ArrayRef<PartInfo> parts,
                                           int64_t microBatches,
                                           int64_t devices, const Costs &costs,
                                           const SearchOptions &options,
                                           std::string &error);

/// Inserts all parts that a schedule does not list. Parts that listed ones read
/// are put in front, in order and for all micro-batches; the others at the end,
/// but before the actions that depend on them.
Schedule insertMissingParts(Schedule schedule, llvm::ArrayRef<PartInfo> parts,
                            int64_t microBatches, const StageMap &map);

} // namespace cleave::scheduling

#endif // CLEAVE_SCHEDULING_SEARCH_SEARCH_H
