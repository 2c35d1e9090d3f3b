//===- DelayWaits.h - Overlap of exchanges with commands --------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TARGET_PROGRAM_DELAYWAITS_H
#define CLEAVE_TARGET_PROGRAM_DELAYWAITS_H

#include "cleave/Runtime/Core/Program.h"

namespace cleave {

/// Moves each wait before the first command that uses the memory of its
/// exchange, or to the end of the part. The order of waits depends on the
/// program alone: it is the same on every rank.
void delayWaits(runtime::Program &program);

} // namespace cleave

#endif // CLEAVE_TARGET_PROGRAM_DELAYWAITS_H
