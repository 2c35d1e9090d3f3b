//===- DelayWaits.h - Overlap of exchanges with commands --------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_TRANSFORMS_DELAYWAITS_H
#define CLEAVE_EXECUTABLE_TRANSFORMS_DELAYWAITS_H

#include "cleave/Executable/Format/Program.h"

namespace cleave {

/// Moves each wait before the first command that uses the memory of its
/// exchange, or to the end of the part. The order of waits depends on the
/// program alone: it is the same on every rank.
void delayWaits(runtime::Program &program);

/// Moves the waits at the end of a part that runs once in a step into later
/// parts: before the first command that uses the memory of their exchange, or
/// behind the last part that runs once before a part which uses it and runs for
/// each micro-batch. Runs after `delayWaits`.
void delayWaitsOverParts(runtime::Program &program);

} // namespace cleave

#endif // CLEAVE_EXECUTABLE_TRANSFORMS_DELAYWAITS_H
