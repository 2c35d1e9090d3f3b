//===- Simulate.h - How long a schedule takes -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A device runs one action at a time, in the order of its list, each as soon
/// as what it reads is there. Transfers occupy no device and do not slow each
/// other down. Without transfers in the schedule, a value is there its transfer
/// cost after it is made. With them, it is there that long after it is made
/// and both devices have begun what stands before the transfer: they start it
/// and go on. Costs that are whole numbers give exact times.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_PIPE_IR_SIMULATE_H
#define CLEAVE_DIALECT_PIPE_IR_SIMULATE_H

#include "cleave/Dialect/Pipe/IR/Verify.h"

namespace cleave::pipe {

/// In any unit of time.
struct Costs {
  /// Of a run of each part. Of a part that fuses others, less than 0 stands for
  /// their sum.
  std::vector<double> run;
  /// Of moving the results of each part to another device; empty: nothing.
  std::vector<double> transfer = {};

  /// Parts of these names cost so much in every stage, fused ones the sum of
  /// what they fuse, and others nothing.
  static Costs
  uniform(llvm::ArrayRef<PartInfo> parts,
          llvm::ArrayRef<std::pair<llvm::StringRef, double>> byName);

  /// What is wrong with them, or nothing.
  std::optional<std::string> check(llvm::ArrayRef<PartInfo> parts) const;
  double ofPart(llvm::ArrayRef<PartInfo> parts, unsigned part) const;
};

struct Span {
  double start = 0, end = 0;
};

struct Simulation {
  /// For each device, the time of each action of its list. Of a transfer: from
  /// when both ends have come to it until what it moves is there.
  std::vector<std::vector<Span>> spans;
  /// When the last action ends.
  double makespan = 0;
  /// For each device, the idle time between its first and last run.
  std::vector<double> idle;
  double maxIdle = 0;
  /// How much later the second of two steps ends than the first, when each
  /// device goes on with the second at once.
  double period = 0;
  /// For each device, the most that is saved at a time, in the unit of
  /// `PartInfo::saved`, the most micro-batches of which something is, and the
  /// same counted in each of its stages.
  std::vector<int64_t> peakSaved, peakInFlight, peakChunks;
  /// For each device, the most versions of parameters that it holds, added up
  /// over its stages: the newest, and those that micro-batches in flight have
  /// read.
  std::vector<int64_t> versions;
  struct Stage {
    /// The most versions at a time, and the most updates that come between what
    /// a micro-batch reads and its own.
    int64_t versions = 0, staleness = 0;
  };
  /// For each stage.
  std::vector<Stage> stages;
};

/// On failure (the schedule or the costs are wrong) returns nothing and sets
/// `error`.
std::optional<Simulation> simulate(const Schedule &schedule,
                                   llvm::ArrayRef<PartInfo> parts,
                                   int64_t microBatches, const StageMap &map,
                                   const Costs &costs, std::string &error,
                                   const VerifyOptions &options = {});

} // namespace cleave::pipe

#endif // CLEAVE_DIALECT_PIPE_IR_SIMULATE_H
