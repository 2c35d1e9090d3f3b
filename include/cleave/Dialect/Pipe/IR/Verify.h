//===- Verify.h - Whether a schedule can run --------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// One verifier for all schedules. A schedule that it accepts
///
/// - runs every part once for each micro-batch (or once), on the device of its
///   stage, and after all that it reads. Where there are transfers, what
///   another device gives must have been received; where there are none, it
///   counts as there once it has run.
/// - does not deadlock even when a send completes only together with its
///   receive, and a collective only when all its members have come to it.
///   Whether it does is decided by running it: an action that has nothing to
///   wait for never hinders another, so one order stands for all.
/// - lists the transfers between two devices, and the collectives of a group,
///   in one order on all of them.
/// - reads parameters for a micro-batch only before it updates them for it, so
///   that all its parts can read the version that the first of them read.
///
/// Replicas of a pipeline run the same lists. What one copy does in some order,
/// all can do together, so a collective of the replicas (a gather, a reduction)
/// never waits for ever where one copy does not: one copy is checked.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_PIPE_IR_VERIFY_H
#define CLEAVE_DIALECT_PIPE_IR_VERIFY_H

#include "cleave/Dialect/Pipe/IR/Schedule.h"
#include "cleave/Dialect/Pipe/IR/StageMap.h"

namespace cleave::pipe {

/// The actions of one part in several stages that their devices must make
/// together, for each micro-batch (or once). A device that has several of the
/// stages joins with the last of its actions.
struct Collective {
  std::string part;
  std::vector<int64_t> stages;
};

struct VerifyOptions {
  /// Besides these, what runs once in a stage that several devices hold is a
  /// collective of theirs.
  std::vector<Collective> collectives = {};
  /// The most that a device may have saved at a time, in the unit of
  /// `PartInfo::saved`.
  std::optional<int64_t> savedLimit = std::nullopt;
  /// That unit is bytes, and messages say so.
  bool savedInBytes = false;
  /// The order was made by a generator: messages do not say what to move.
  bool generated = false;
  /// How many updates of a stage may come between the first action of a
  /// micro-batch there and its own update.
  std::optional<int64_t> staleness = std::nullopt;
};

/// An action of a schedule: `index` is its place in the list of its device; as
/// many as that has stands for the list itself.
struct ActionRef {
  int64_t device = 0;
  size_t index = 0;
};

/// Why a schedule cannot run: the two actions that conflict, for a deadlock all
/// that wait for each other, and what to do.
struct Violation {
  std::string text;
  /// Those that it names, first the one where it was found; none where it is
  /// about no action.
  std::vector<ActionRef> actions = {};
};

/// The first violation, or nothing.
std::optional<Violation> findViolation(const Schedule &schedule,
                                       llvm::ArrayRef<PartInfo> parts,
                                       int64_t microBatches,
                                       const StageMap &map,
                                       const VerifyOptions &options = {});

/// Its text alone.
std::optional<std::string> verifySchedule(const Schedule &schedule,
                                          llvm::ArrayRef<PartInfo> parts,
                                          int64_t microBatches,
                                          const StageMap &map,
                                          const VerifyOptions &options = {});

} // namespace cleave::pipe

#endif // CLEAVE_DIALECT_PIPE_IR_VERIFY_H
