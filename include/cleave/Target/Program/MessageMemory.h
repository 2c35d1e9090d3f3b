//===- MessageMemory.h - Memory of messages between processes ---*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TARGET_PROGRAM_MESSAGEMEMORY_H
#define CLEAVE_TARGET_PROGRAM_MESSAGEMEMORY_H

#include "cleave/Runtime/Core/Program.h"

namespace cleave {

/// Returns the bytes outside of the arena that exchanges of a rank need if
/// ranks are processes: an upper bound over the entries of what is in flight at
/// once. Ranks that are threads need none.
int64_t messageBytes(const runtime::Program &program);

} // namespace cleave

#endif // CLEAVE_TARGET_PROGRAM_MESSAGEMEMORY_H
