//===- Simulate.h - Simulation of a schedule --------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The simulated execution of a schedule. A position runs one action at a time,
/// in the order of its list, each as soon as the values that it reads have
/// arrived. Transfers are asynchronous: they occupy no position and do not slow
/// each other down. If the schedule has no transfers, a value arrives its
/// transfer cost after it is computed. If it has, the transfer starts when the
/// value is computed and both positions have started the actions that precede
/// the transfer in their lists. Integer costs give exact times.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SCHEDULING_TIMELINE_SIMULATE_H
#define CLEAVE_SCHEDULING_TIMELINE_SIMULATE_H

#include "cleave/Scheduling/Check/Verify.h"

namespace cleave::scheduling {

/// The costs of a simulation, in any unit of time.
struct Costs {
  /// The cost of a run of each part. For a part that fuses others, a negative
  /// cost stands for the sum of theirs.
  std::vector<double> run;
  /// The cost of a transfer of the results of each part to another position;
  /// empty: no cost.
  std::vector<double> transfer = {};

  /// Returns costs by name, the same in every stage. Parts that fuse others
  /// cost the sum of these, and parts of other names nothing.
  static Costs
  uniform(llvm::ArrayRef<PartInfo> parts,
          llvm::ArrayRef<std::pair<llvm::StringRef, double>> byName);

  /// Why the costs do not fit `parts`, or nothing.
  std::optional<std::string> check(llvm::ArrayRef<PartInfo> parts) const;
  /// The cost of a run of a part.
  double ofPart(llvm::ArrayRef<PartInfo> parts, unsigned part) const;
};

struct Span {
  double start = 0, end = 0;
};

struct Simulation {
  /// For each position, the time span of each action of its list. The span of a
  /// transfer is from its start (both ends have arrived) to the arrival of the
  /// values.
  std::vector<std::vector<Span>> spans;
  /// The end of the last action.
  double makespan = 0;
  /// For each position, the idle time between its first and last run.
  std::vector<double> idle;
  double maxIdle = 0;
  /// The time from the end of one step to the end of the next, if each position
  /// starts the next step without a barrier.
  double period = 0;
  /// For each position, the peaks over time of: the amount saved, in the unit
  /// of `PartInfo::saved`; the number of micro-batches with saved results; the
  /// number of pairs of a stage and a micro-batch with saved results.
  std::vector<int64_t> peakSaved, peakInFlight, peakChunks;
  /// For each position, the most versions of parameters that it holds, added up
  /// over its stages: the newest, and those that micro-batches in flight have
  /// read.
  std::vector<int64_t> versions;
  struct Stage {
    /// The most versions at a time, and the most updates between the version
    /// that a micro-batch reads and its own update.
    int64_t versions = 0, staleness = 0;
  };
  /// For each stage, its versions and staleness.
  std::vector<Stage> stages;
};

/// Verifies and simulates `schedule`. On failure (the schedule or the costs are
/// invalid) returns nothing and sets `error`.
std::optional<Simulation> simulate(const Schedule &schedule,
                                   llvm::ArrayRef<PartInfo> parts,
                                   int64_t microBatches, const StageMap &map,
                                   const Costs &costs, std::string &error,
                                   const VerifyOptions &options = {});

} // namespace cleave::scheduling

#endif // CLEAVE_SCHEDULING_TIMELINE_SIMULATE_H
