//===- RepeatedRows.h - Continuation of repeated rows -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_TARGET_PROGRAM_REPEATEDROWS_H
#define CLEAVE_LIB_TARGET_PROGRAM_REPEATEDROWS_H

#include "cleave/Executable/Format/Program.h"

namespace cleave {

/// Whether `column`, with `count` runs, can be continued for `more` runs in
/// between: enough of them are regular, and buffers used in turn end with the
/// same one if the last runs use other memory.
bool isPeriodic(const runtime::Column &column, int64_t count, int64_t more);

} // namespace cleave

#endif // CLEAVE_LIB_TARGET_PROGRAM_REPEATEDROWS_H
