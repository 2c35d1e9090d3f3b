//===- RepeatedRows.h - Whether rows go on as they are ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_TARGET_PROGRAM_REPEATEDROWS_H
#define CLEAVE_LIB_TARGET_PROGRAM_REPEATEDROWS_H

#include "cleave/Runtime/Program.h"

namespace cleave {

/// Whether `column`, made of `count` runs, holds for `more` runs between them:
/// enough of them are regular, and what comes in turn ends in the same turn
/// where the last runs lie elsewhere.
bool goesOn(const runtime::Column &column, int64_t count, int64_t more);

} // namespace cleave

#endif // CLEAVE_LIB_TARGET_PROGRAM_REPEATEDROWS_H
