//===- Schedule.h - The order of actions, as data ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Plain C++: a schedule is a list of actions for each device, generated,
/// written by hand or read from a file, and checked by one verifier.
///
///   action    `<stage><part><micro-batch>`: `F3` is the forward of
///             micro-batch 3, `2F0` that of stage 2; stage 0 is not written,
///             and a part that runs once has no micro-batch
///   send      `<action>><stage>`: `F3>1` sends the results of `F3` to stage 1
///   receive   `<stage><<action>`: `1<F3` is the other end; here stage 0 is
///             written, `0<1B3`
///   repeat    `{<times>+<step>: ...}`: the actions in braces so many times,
///             micro-batches greater by `step` (`-<step>`: less) each time
///   devices   separated by `|` or by a new line; lines without actions count
///             for nothing, `-` is a device without any, and `#` starts a
///             comment
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

/// One run of a part, or one end of a transfer of its results.
struct Action {
  enum class Kind { Run, Send, Receive };

  /// The part's name, of letters.
  std::string part;
  /// The micro-batch, or -1 for a part that runs once.
  int64_t microBatch = -1;
  /// The pipeline stage.
  int64_t stage = 0;
  Kind kind = Kind::Run;
  /// Of a transfer: the stage that receives.
  int64_t to = -1;

  bool operator==(const Action &other) const = default;
  std::string str() const;
  /// The same for all micro-batches: `*` stands in their place.
  std::string pattern() const;
  /// Reads what `str` wrote, or returns nothing.
  static std::optional<Action> parse(llvm::StringRef text);

  /// The run whose results a transfer moves; of a run, itself.
  Action run() const { return {part, microBatch, stage}; }
  Action send(int64_t stage) const;
  Action receive(int64_t stage) const;
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
  /// Indices of parts of the same stage that this one does at once, in their
  /// place, as a whole backward does its two halves; it has no `uses` of its
  /// own then, and nothing names it in `uses`.
  std::vector<unsigned> fuses = {};
  /// How much a run saves until all parts of its stage that read it have run
  /// for the micro-batch, in any unit: of its results and of what it receives.
  int64_t saved = 0;
  /// A run changes the parameters that its stage reads.
  bool updates = false;
  /// A run reads what updates of its stage change.
  bool reads = true;
  /// What it reads of other devices is sent behind all that is not late: nobody
  /// waits for it before.
  bool late = false;
};

/// Whether a schedule must name the part: its order is what a schedule is for.
inline bool isForwardOrBackward(llvm::StringRef part) {
  return part == "F" || part == "B" || part == "I" || part == "W";
}

/// A place in a text. Both count from 1; a line of 0 is no place.
struct TextPlace {
  int64_t line = 0, column = 0;
  bool operator==(const TextPlace &other) const = default;
};

/// Where a schedule stands in the text that it was read from.
struct SchedulePlaces {
  /// Of each device, its list, and each of its actions; those that a repeat
  /// makes stand where it has them.
  std::vector<TextPlace> devices;
  std::vector<std::vector<TextPlace>> actions;
  /// Of what cannot be read.
  TextPlace error;
};

struct Schedule {
  /// The actions of each device, in order; of at least one device.
  std::vector<std::vector<Action>> devices =
      std::vector<std::vector<Action>>(1);

  /// Reads a schedule; on failure returns nothing and sets `error`. Sets
  /// `places`, unless it is null.
  static std::optional<Schedule> parse(llvm::StringRef text, std::string &error,
                                       SchedulePlaces *places = nullptr);
  /// Every action written out.
  std::string str(llvm::StringRef separator = " | ") const;
  /// Runs of actions that differ in the micro-batch alone as repeats: for
  /// regular schedules, as many words for any number of micro-batches.
  std::string compact(llvm::StringRef separator = " | ") const;

  bool operator==(const Schedule &other) const = default;

  /// Those of the first device: all, where there is one.
  std::vector<Action> &actions() { return devices.front(); }
  const std::vector<Action> &actions() const { return devices.front(); }

  /// True for a non-empty name made of letters.
  static bool isPartName(llvm::StringRef name);

  /// For one device: each part runs exactly once for each micro-batch (or
  /// once), and not before what it reads. Returns the first violation, or
  /// nothing.
  std::optional<std::string> verify(llvm::ArrayRef<PartInfo> parts,
                                    int64_t microBatches) const;

  /// One device: prologues for all micro-batches, then the other parts in
  /// order, micro-batch by micro-batch, then what runs once. With `inTree`,
  /// micro-batches come in the order in which a tree sums them up.
  static Schedule singleStage(llvm::ArrayRef<PartInfo> parts,
                              int64_t microBatches, bool inTree = false);
};

} // namespace cleave::pipe

#endif // CLEAVE_DIALECT_PIPE_IR_SCHEDULE_H
