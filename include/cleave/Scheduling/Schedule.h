//===- Schedule.h - The order of actions, as data ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Schedules as plain data: a list of actions for each pipeline position,
/// generated, written by hand or read from a file, and checked by one verifier.
///
///   action    `<stage><part><micro-batch>`: `F3` is the forward of
///             micro-batch 3 in stage 0, `2F3` the same in stage 2; stage 0 is
///             not written, and a part that runs once has no micro-batch
///   send      `<action>><stage>`: `F3>1` sends the results of `F3` to stage 1
///   receive   `<stage><<action>`: `1<F3` is the other end of `F3>1`; the stage
///             before `<` is written even if it is 0, as in `0<1B3`
///   repeat    `{<times>+<step>: ...}`: repeats the actions in braces; each
///             time, micro-batches are greater by `step` (less for `-<step>`)
///   position  the lists of positions are separated by `|` or by a new line;
///             `-` is an empty list, `#` starts a comment, and empty lines are
///             ignored
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SCHEDULING_SCHEDULE_H
#define CLEAVE_SCHEDULING_SCHEDULE_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cleave::scheduling {

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
  /// For a transfer, the stage that receives.
  int64_t to = -1;

  bool operator==(const Action &other) const = default;
  std::string str() const;
  /// The text with `*` in place of the micro-batch.
  std::string pattern() const;
  /// Reads the text form of an action; returns nothing if it is not one.
  static std::optional<Action> parse(llvm::StringRef text);

  /// For a transfer, the run whose results it sends; for a run, the run itself.
  Action run() const { return {part, microBatch, stage}; }
  Action send(int64_t stage) const;
  Action receive(int64_t stage) const;
};

/// The properties of a part that scheduling depends on.
struct PartInfo {
  /// A dependency on an earlier part.
  struct Use {
    /// Index of the part whose results are read.
    unsigned part;
    /// True: only the run of the same micro-batch must come before; false: the
    /// runs of all micro-batches must.
    bool sameMicroBatch;
  };
  std::string name;
  /// Whether it runs once, not for each micro-batch.
  bool once = false;
  int64_t stage = 0;
  std::vector<Use> uses;
  /// Indices of parts of the same stage that a run of this part replaces, as B
  /// replaces I and W. Such a part has no `uses` of its own, and no part names
  /// it in `uses`.
  std::vector<unsigned> fuses = {};
  /// The amount of results and received values that a run keeps until all
  /// parts of its stage that read them have run for the micro-batch. The unit
  /// is the caller's choice.
  int64_t saved = 0;
  /// Whether a run changes the parameters of its stage.
  bool updates = false;
  /// Whether a run reads the parameters of its stage.
  bool reads = true;
  /// Whether the values that it reads from other positions are sent only after
  /// all actions that are not late, so that no position waits for them before.
  bool late = false;
};

/// For each part, whether it runs once, and what it gives others depends on no
/// part: it begins the step, so that what it leaves under way overlaps with all
/// of it.
std::vector<bool> partsThatBegin(llvm::ArrayRef<PartInfo> parts);

/// Whether a schedule must list the runs of the part. Other parts can be
/// inserted (`insertMissingParts`).
inline bool isForwardOrBackward(llvm::StringRef part) {
  return part == "F" || part == "B" || part == "I" || part == "W";
}

/// A place in a text. Lines and columns count from 1; line 0 means unknown.
struct TextPlace {
  int64_t line = 0, column = 0;
  bool operator==(const TextPlace &other) const = default;
};

/// The places of a schedule in the text that it was read from.
struct SchedulePlaces {
  /// For each position, the place of its list, and of each of its actions.
  /// Actions that a repeat expands to have the place of the action in braces.
  std::vector<TextPlace> devices;
  std::vector<std::vector<TextPlace>> actions;
  /// The place of the first syntax error.
  TextPlace error;
};

struct Schedule {
  /// The ordered list of actions of each pipeline position; at least one list.
  std::vector<std::vector<Action>> devices =
      std::vector<std::vector<Action>>(1);

  /// Parses a schedule; on failure returns nothing and sets `error`. Sets
  /// `places`, unless it is null.
  static std::optional<Schedule> parse(llvm::StringRef text, std::string &error,
                                       SchedulePlaces *places = nullptr);
  /// The text with every action written out.
  std::string str(llvm::StringRef separator = " | ") const;
  /// The text with repeats where consecutive actions differ only in the
  /// micro-batch: the length of a periodic schedule does not depend on the
  /// number of micro-batches.
  std::string compact(llvm::StringRef separator = " | ") const;

  bool operator==(const Schedule &other) const = default;

  /// The actions of the first position; all actions, if it is the only one.
  std::vector<Action> &actions() { return devices.front(); }
  const std::vector<Action> &actions() const { return devices.front(); }

  /// Whether `name` is non-empty and consists of letters.
  static bool isPartName(llvm::StringRef name);

  /// Verifies a schedule of one position: each part runs exactly once for each
  /// micro-batch (or once), after the parts that it reads. Returns the first
  /// violation, or nothing.
  std::optional<std::string> verify(llvm::ArrayRef<PartInfo> parts,
                                    int64_t microBatches) const;

  /// Returns a schedule of one position: prologues for all micro-batches, then
  /// the other parts in order, micro-batch by micro-batch, then the parts that
  /// run once. With `inTree`, micro-batches come in the order in which a binary
  /// tree adds them up.
  static Schedule singleStage(llvm::ArrayRef<PartInfo> parts,
                              int64_t microBatches, bool inTree = false);
};

} // namespace cleave::scheduling

#endif // CLEAVE_SCHEDULING_SCHEDULE_H
