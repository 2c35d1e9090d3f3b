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

/// The places behind each window of a causal convolution along the last
/// dimension of an image `[n, c, 1, t]`, which a pad puts zeros in front of;
/// nothing for other windows.
std::optional<int64_t> causalReach(graph::PatchesOp op);

/// The same of the gradient of such windows, the places of whose pad are cut
/// off.
std::optional<int64_t> causalReach(graph::PatchesGradOp op);

/// Computes `op`, of a `causalReach`, in `blocks` blocks along the last
/// dimension: so many last elements of each move to the next block (a halo).
void blockWindows(graph::PatchesOp op, int64_t blocks);

/// Likewise the gradient: what the first windows of a block give to the last
/// elements of the block before moves there.
void blockWindowsGrad(graph::PatchesGradOp op, int64_t blocks);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_DECOMPOSE_BLOCKSCANS_H
