//===- Generators.h - Known schedules ---------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Each gives the order of F, then B or I and W, and U, without transfers
/// (`insertTransfers` adds them). `p` devices, `v` stages on each (chunks), `m`
/// micro-batches.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_PIPE_IR_GENERATORS_H
#define CLEAVE_DIALECT_PIPE_IR_GENERATORS_H

#include "cleave/Dialect/Pipe/IR/Schedule.h"
#include "cleave/Dialect/Pipe/IR/StageMap.h"

namespace cleave::pipe {

struct PipelineSize {
  int64_t devices = 1, chunks = 1, microBatches = 1;
  /// Of an asynchronous schedule: the most updates that may be missing when
  /// forward reads parameters; any number if negative.
  int64_t staleness = -1;
};

struct Generator {
  llvm::StringLiteral name, description;
  /// How many stages a device must have; 0: at least 2.
  int64_t chunks;
  StageMap::Kind map;
  /// Backward must be split in I and W.
  bool split;
  /// Each micro-batch has its own update.
  bool asynchronous;
  /// On failure returns nothing and sets the error.
  std::optional<Schedule> (*generate)(const PipelineSize &, std::string &);

  /// Whether it needs no other number of chunks.
  bool takesChunks(int64_t number) const {
    return chunks ? number == chunks : number >= 2;
  }
};

/// All of them.
llvm::ArrayRef<Generator> generators();

/// The one of this name; on failure returns null and sets `error`.
const Generator *findGenerator(llvm::StringRef name, std::string &error);

/// On failure (no such name, or sizes that it cannot take) returns nothing and
/// sets `error`.
std::optional<Schedule> generateSchedule(llvm::StringRef name,
                                         const PipelineSize &size,
                                         std::string &error);

} // namespace cleave::pipe

#endif // CLEAVE_DIALECT_PIPE_IR_GENERATORS_H
