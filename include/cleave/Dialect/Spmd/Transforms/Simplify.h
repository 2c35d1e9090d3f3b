//===- Simplify.h - Movements that are less together ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_TRANSFORMS_SIMPLIFY_H
#define CLEAVE_DIALECT_SPMD_TRANSFORMS_SIMPLIFY_H

#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

namespace mlir {
class RewriterBase;
} // namespace mlir

namespace cleave::spmd {

/// Whether a slice by `dims` of a sum over `axes` that nothing else reads is a
/// reduce_scatter: its axes are among those of the sum, and all of devices.
bool canScatter(const Mesh &mesh, llvm::ArrayRef<AxisRef> axes,
                llvm::ArrayRef<AxisList> dims);

/// all_reduce then slice, where nothing else reads the sum: reduce_scatter.
/// What the slice does not split along is reduced afterwards, when it is
/// smaller. Returns whether it was.
bool scatterSlice(SliceOp slice, const Mesh &mesh,
                  mlir::RewriterBase &rewriter);

/// A movement back to where a value came from is that value: a slice of what
/// was gathered, the second of two all-to-alls. Returns whether `op` was one.
bool undoMovement(mlir::Operation *op, const Mesh &mesh,
                  mlir::RewriterBase &rewriter);

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_TRANSFORMS_SIMPLIFY_H
