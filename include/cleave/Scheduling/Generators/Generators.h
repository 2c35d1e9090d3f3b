//===- Generators.h - Known schedules ---------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Generators of schedules known from the literature. Each returns the order of
/// F, of B or of I and W, and of U, without transfers (`insertTransfers` adds
/// them). Formulas use `p` pipeline positions, `v` stages at each of them
/// (chunks) and `m` micro-batches. The source of each generator draws a small
/// timeline and cites its paper.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SCHEDULING_GENERATORS_GENERATORS_H
#define CLEAVE_SCHEDULING_GENERATORS_GENERATORS_H

#include "cleave/Scheduling/Schedule.h"
#include "cleave/Scheduling/StageMap.h"

namespace cleave::scheduling {

struct PipelineSize {
  /// Pipeline positions, stages at each position, and micro-batches.
  int64_t devices = 1, chunks = 1, microBatches = 1;
  /// The staleness bound of an asynchronous schedule: the most updates that
  /// come between the version that a micro-batch reads and its own update.
  /// Negative: no bound.
  int64_t staleness = -1;
};

struct Generator {
  llvm::StringLiteral name, description;
  /// The number of chunks that the schedule needs; 0: any number from 2 on.
  int64_t chunks;
  StageMap::Kind map;
  /// Whether backward must be split into I and W.
  bool split;
  /// Whether each micro-batch has its own update.
  bool asynchronous;
  /// On failure returns nothing and sets the error.
  std::optional<Schedule> (*generate)(const PipelineSize &, std::string &);

  /// Whether the generator accepts this number of chunks.
  bool takesChunks(int64_t number) const {
    return chunks ? number == chunks : number >= 2;
  }
};

/// Returns all generators.
llvm::ArrayRef<Generator> generators();

/// Returns the generator of this name; on failure returns null and sets
/// `error`.
const Generator *findGenerator(llvm::StringRef name, std::string &error);

/// Generates the schedule `name`. On failure (an unknown name, or a size that
/// the generator does not accept) returns nothing and sets `error`.
std::optional<Schedule> generateSchedule(llvm::StringRef name,
                                         const PipelineSize &size,
                                         std::string &error);

} // namespace cleave::scheduling

#endif // CLEAVE_SCHEDULING_GENERATORS_GENERATORS_H
