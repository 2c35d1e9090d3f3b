//===- InsertTransfers.h - Sends and receives of a schedule -----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The placement of sends and receives in a schedule. All actions are put on
/// one simulated time line, on which each part takes the same time and starts
/// as early as the schedule allows. A transfer is an event of the time line, at
/// the time when the values sent are computed. Each position lists its own
/// events in the order of the time line; both ends of a transfer stand at the
/// time of its event.
///
/// The result cannot deadlock, even if every send waits for its receive: the
/// earliest event that has not happened is the next one at all positions that
/// take part in it, and everything that it reads is earlier, so it can happen.
/// This covers neighbours that exchange values at the same time, as in 1F1B
/// (the time line decides which of the two transfers is first, and both sides
/// agree), and transfers that skip stages.
///
/// A send stands directly after the action whose results it sends. A receive
/// stands before all actions that its position starts after the event, not just
/// before its reader: the actions in between hide the transfer.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SCHEDULING_INSERTTRANSFERS_H
#define CLEAVE_SCHEDULING_INSERTTRANSFERS_H

#include "cleave/Scheduling/Check/Verify.h"

namespace cleave::scheduling {

/// Returns `schedule`, which has no transfers, with the transfers that it
/// needs: for each run, one to each other position that reads its results,
/// however many parts read them. On failure (the schedule cannot run, or has
/// transfers) returns nothing and sets `error`.
std::optional<Schedule>
insertTransfers(const Schedule &schedule, llvm::ArrayRef<PartInfo> parts,
                int64_t microBatches, const StageMap &map, std::string &error,
                llvm::ArrayRef<Collective> collectives = {});

} // namespace cleave::scheduling

#endif // CLEAVE_SCHEDULING_INSERTTRANSFERS_H
