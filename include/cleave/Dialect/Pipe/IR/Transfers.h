//===- Transfers.h - Sends and receives of a schedule -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Where transfers stand. All actions are put on one time line, on which each
/// part takes the same time and starts as early as the schedule allows; a
/// transfer is an event of it, at the moment when what it moves is there. Each
/// device lists its own events in the order of the line, both ends of a
/// transfer at its one place.
///
/// This cannot deadlock, even if every send waits for its receive: of what has
/// not happened yet, the earliest event of the line comes first on all devices
/// that take part in it, and all that it reads lies before it; so it can go
/// on. Neighbours that exchange values at the same moment, as in 1F1B, are one
/// case of it: the line says which of the two transfers is first, and both
/// sides agree. So is an edge that skips stages.
///
/// A send stands directly behind what it sends, and a receive before all that
/// its device starts after that moment, not just before its reader: what runs
/// in between hides the transfer.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_PIPE_IR_TRANSFERS_H
#define CLEAVE_DIALECT_PIPE_IR_TRANSFERS_H

#include "cleave/Dialect/Pipe/IR/Verify.h"

namespace cleave::pipe {

/// A schedule without transfers, and the transfers that it needs: one for each
/// device that reads results of another one, however many parts read them. On
/// failure (the schedule cannot run, or has transfers) returns nothing and sets
/// `error`.
std::optional<Schedule>
insertTransfers(const Schedule &schedule, llvm::ArrayRef<PartInfo> parts,
                int64_t microBatches, const StageMap &map, std::string &error,
                llvm::ArrayRef<Collective> collectives = {});

} // namespace cleave::pipe

#endif // CLEAVE_DIALECT_PIPE_IR_TRANSFERS_H
