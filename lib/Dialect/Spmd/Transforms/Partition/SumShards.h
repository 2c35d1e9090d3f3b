//===- SumShards.h - Cumulative sums along a sharded dimension --*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_PARTITION_SUMSHARDS_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_PARTITION_SUMSHARDS_H

#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

namespace mlir {
class RewriterBase;
} // namespace mlir

namespace cleave::spmd {

/// Where `slice` reads the rank's part of a cumulative sum of integers that
/// were gathered along its dimension for it alone, gathers the sum of each
/// shard instead. Returns whether it does, and replaces the slice then. Floats
/// are left, whose sums would be added in another order.
bool sumShards(SliceOp slice, const Mesh &mesh, mlir::RewriterBase &rewriter);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_PARTITION_SUMSHARDS_H
