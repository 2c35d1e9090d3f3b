//===- RecordSaved.h - What forward saves, for the report -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_RECOMPUTE_RECORDSAVED_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_RECOMPUTE_RECORDSAVED_H

#include "Blocks.h"

namespace cleave::pipe {

/// Writes, as an attribute of `program`, what each forward part saves for its
/// own stage, and the masks that it does not save, by block.
void recordSaved(ProgramOp program, const Blocks &blocks);

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_RECOMPUTE_RECORDSAVED_H
