//===- PassOn.h - Saved values of a backward in two parts -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_RECOMPUTE_PASSON_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_RECOMPUTE_PASSON_H

#include "cleave/Dialect/Pipe/IR/PipeOps.h"

namespace cleave::pipe {

/// Whether `producer` saves a value for `consumer`.
bool savesFor(InvokeOp producer, InvokeOp consumer);

/// Of a backward in two parts, lets the second read what forward saves for it
/// from the first, which returns it. Values to compute again are computed
/// once, in the first part, and the second keeps what its matmuls read for as
/// long as it is delayed. `repeats` says whether all of the block of a value of
/// forward is computed again: the second part then also reads what it would
/// gather as forward does. New invocations take the places of those of the
/// first parts.
void passOnSaved(llvm::MutableArrayRef<InvokeOp> invokes,
                 llvm::function_ref<bool(mlir::OpResult)> repeats);

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_RECOMPUTE_PASSON_H
