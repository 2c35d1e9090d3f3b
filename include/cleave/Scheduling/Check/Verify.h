//===- Verify.h - Verification of schedules ---------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// One verifier for all schedules. A schedule that it accepts
///
/// - runs every part once for each micro-batch (or once), at the position of
/// its
///   stage, and after the parts that it reads. If the schedule has transfers,
///   results of another position must have been received; if it has none, they
///   are available as soon as they are computed.
/// - does not deadlock, even if a send completes only together with its receive
///   (rendezvous), and a collective only when all its members have arrived.
///   This is decided by executing the schedule: an action that can run is never
///   disabled by another one, so one order of execution stands for all.
/// - lists the transfers between two positions, and the collectives of a group,
///   in the same order at all of them.
/// - reads parameters for a micro-batch only before the update for that
///   micro-batch, so that all its parts can read the version that the first of
///   them read.
///
/// Replicas of a pipeline run the same lists. They can all follow the order in
/// which one replica runs, so a collective over replicas (a gather, a
/// reduction) cannot deadlock if one replica alone does not. Therefore one is
/// checked.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SCHEDULING_CHECK_VERIFY_H
#define CLEAVE_SCHEDULING_CHECK_VERIFY_H

#include "cleave/Scheduling/Schedule.h"
#include "cleave/Scheduling/StageMap.h"

namespace cleave::scheduling {

/// A part of several stages that their positions must run together, for each
/// micro-batch (or once). A position with several of these stages joins with
/// the last of its actions.
struct Collective {
  std::string part;
  std::vector<int64_t> stages;
};

struct VerifyOptions {
  /// The collectives between stages. In addition, a part that runs once in a
  /// stage that several positions hold is a collective of these positions.
  std::vector<Collective> collectives = {};
  /// The most that a position may have saved at a time, in the unit of
  /// `PartInfo::saved`.
  std::optional<int64_t> savedLimit = std::nullopt;
  /// Whether that unit is bytes; messages say so then.
  bool savedInBytes = false;
  /// Whether a generator made the order; messages do not suggest how to change
  /// it then.
  bool generated = false;
  /// The staleness bound: the most updates of a stage that may come between the
  /// first action of a micro-batch in it and the update of this micro-batch.
  std::optional<int64_t> staleness = std::nullopt;
};

/// A reference to an action: `index` is its index in the list of its position.
/// An index equal to the length of the list refers to the list itself.
struct ActionRef {
  int64_t device = 0;
  size_t index = 0;
};

/// Why a schedule cannot run: the two actions that conflict (for a deadlock,
/// all actions of the cycle), and what to do.
struct Violation {
  std::string text;
  /// The actions that the text names, beginning with the one where the
  /// violation was found; empty if it concerns no action.
  std::vector<ActionRef> actions = {};
};

/// Returns the first violation, or nothing.
std::optional<Violation> findViolation(const Schedule &schedule,
                                       llvm::ArrayRef<PartInfo> parts,
                                       int64_t microBatches,
                                       const StageMap &map,
                                       const VerifyOptions &options = {});

/// Returns the text of the first violation, or nothing.
std::optional<std::string> verifySchedule(const Schedule &schedule,
                                          llvm::ArrayRef<PartInfo> parts,
                                          int64_t microBatches,
                                          const StageMap &map,
                                          const VerifyOptions &options = {});

} // namespace cleave::scheduling

#endif // CLEAVE_SCHEDULING_CHECK_VERIFY_H
