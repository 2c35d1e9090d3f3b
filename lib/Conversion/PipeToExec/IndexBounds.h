//===- IndexBounds.h - Bounds of inputs that are indices --------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_CONVERSION_PIPETOEXEC_INDEXBOUNDS_H
#define CLEAVE_LIB_CONVERSION_PIPETOEXEC_INDEXBOUNDS_H

#include "cleave/Dialect/Pipe/IR/PipeOps.h"

namespace cleave::exec {

/// Sets, on each integer argument of an entry that parts read as indices, the
/// bound of its values.
void annotateIndexBounds(pipe::ProgramOp program);

} // namespace cleave::exec

#endif // CLEAVE_LIB_CONVERSION_PIPETOEXEC_INDEXBOUNDS_H
