//===- OptimizeCollectives.h - Rewrites of collectives ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_TRANSFORMS_PARTITION_OPTIMIZECOLLECTIVES_H
#define CLEAVE_DIALECT_SPMD_TRANSFORMS_PARTITION_OPTIMIZECOLLECTIVES_H

#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

namespace mlir {
class RewriterBase;
} // namespace mlir

namespace cleave::spmd {

/// Whether a slice by `dims` is, as the only reader of an all_reduce over
/// `axes`, a reduce_scatter: its axes are among those of the all_reduce, and
/// none is sequential.
bool canScatter(const Mesh &mesh, llvm::ArrayRef<AxisRef> axes,
                llvm::ArrayRef<AxisList> dims);

/// Rewrites an all_reduce whose only reader is `slice` into a reduce_scatter.
/// The axes that the slice does not name are reduced afterwards, on the smaller
/// value. Returns whether the rewrite applied.
bool scatterSlice(SliceOp slice, const Mesh &mesh,
                  mlir::RewriterBase &rewriter);

/// Replaces a collective that undoes the previous one by the original value: a
/// slice of an all_gather, or the second of two all_to_alls. Returns whether
/// the rewrite applied.
bool undoCollective(mlir::Operation *op, const Mesh &mesh,
                    mlir::RewriterBase &rewriter);

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_TRANSFORMS_PARTITION_OPTIMIZECOLLECTIVES_H
