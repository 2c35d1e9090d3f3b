//===- BlockScans.h - Recurrences over shards of a sequence -----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_DECOMPOSE_BLOCKSCANS_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_DECOMPOSE_BLOCKSCANS_H

#include "cleave/Dialect/Graph/IR/GraphOps.h"

namespace cleave::spmd {

/// Computes the recurrence `op` in `blocks` blocks along its dimension, whose
/// size they divide: each block from a state of zero, and what the state before
/// the block adds to it.
void blockScan(graph::LinearScanOp op, int64_t blocks);

/// The dimension along which `op` moves the elements of a tensor by one place,
/// and fills the place that is left with zero.
std::optional<int64_t> shiftedDim(graph::PadOp op);

/// Computes `op`, of `shiftedDim` `dim`, in `blocks` blocks along it: one
/// element of each moves to the next block.
void blockShift(graph::PadOp op, int64_t dim, int64_t blocks);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_DECOMPOSE_BLOCKSCANS_H
