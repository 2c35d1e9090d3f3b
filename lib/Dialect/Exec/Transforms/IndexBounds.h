//===- IndexBounds.h - Bounds of inputs that are indices --------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_INDEXBOUNDS_H
#define CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_INDEXBOUNDS_H

#include "cleave/Dialect/Pipe/IR/PipeOps.h"

namespace cleave::exec {

/// Writes on each integer argument of an entry what its values must be below,
/// by the ops of all parts that read it as indices.
void annotateIndexBounds(pipe::ProgramOp program);

} // namespace cleave::exec

#endif // CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_INDEXBOUNDS_H
