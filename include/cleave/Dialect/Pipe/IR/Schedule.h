//===- Schedule.h - The order of actions, as data ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Plain C++: a schedule is a list of actions, generated, written by hand or
/// read from a file, and checked by one verifier. An action is written
/// `<stage><part><micro-batch>`: `F3` is the forward of micro-batch 3, `2F0`
/// that of stage 2; stage 0 is not written, and a part that runs once has no
/// micro-batch.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_PIPE_IR_SCHEDULE_H
#define CLEAVE_DIALECT_PIPE_IR_SCHEDULE_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cleave::pipe {

/// One run of a part.
struct Action {
  /// The part's name, of letters.
  std::string part;
  /// The micro-batch, or -1 for a part that runs once.
  int64_t microBatch = -1;
  /// The pipeline stage.
  int64_t stage = 0;

  bool operator==(const Action &other) const = default;
  std::string str() const;
};

/// What a schedule must know of a part.
struct PartInfo {
  /// An earlier part whose results this one reads.
  struct Use {
    /// Index of the part that gives the value.
    unsigned part;
    /// True: the value of the same micro-batch; false: all micro-batches
    /// must have run.
    bool sameMicroBatch;
  };
  std::string name;
  /// It runs once, not for each micro-batch.
  bool once = false;
  int64_t stage = 0;
  std::vector<Use> uses;
};

struct Schedule {
  std::vector<Action> actions;

  /// Reads actions separated by white space; on failure returns nothing and
  /// sets `error`.
  static std::optional<Schedule> parse(llvm::StringRef text,
                                       std::string &error);
  std::string str() const;

  /// True for a non-empty name made of letters.
  static bool isPartName(llvm::StringRef name);

  /// Each part runs exactly once for each micro-batch (or once), and not
  /// before what it reads. Returns the first violation, or nothing.
  std::optional<std::string> verify(llvm::ArrayRef<PartInfo> parts,
                                    int64_t microBatches) const;

  //===--- Generators, one function for each schedule ---------------------===//

  /// One device: prologues for all micro-batches, then the other parts in
  /// order, micro-batch by micro-batch, then what runs once. With `inTree`,
  /// micro-batches come in the order in which a tree sums them up.
  static Schedule singleStage(llvm::ArrayRef<PartInfo> parts,
                              int64_t microBatches, bool inTree = false);
};

} // namespace cleave::pipe

#endif // CLEAVE_DIALECT_PIPE_IR_SCHEDULE_H
