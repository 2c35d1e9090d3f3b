//===- DeferChecks.h - Checks that take effect later ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_TRANSFORMS_DEFERCHECKS_H
#define CLEAVE_EXECUTABLE_TRANSFORMS_DEFERCHECKS_H

#include "cleave/Executable/Format/Program.h"

namespace cleave {

/// Defers each check to the last one of its entry, for devices that the host
/// has to wait for at checks, and for ranks that wait for each other there. A
/// check stays in its place if it is the last of an entry, or if anything
/// between it and the last one writes to what the next step reads: parameters,
/// state, buffers or the second tier. All ranks must run this program, since
/// they reach the same checks then.
void deferChecks(runtime::Program &program);

} // namespace cleave

#endif // CLEAVE_EXECUTABLE_TRANSFORMS_DEFERCHECKS_H
