//===- MessageMemory.h - Memory of messages between processes ---*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_TRANSFORMS_MESSAGEMEMORY_H
#define CLEAVE_EXECUTABLE_TRANSFORMS_MESSAGEMEMORY_H

#include "cleave/Executable/Format/Program.h"
#include <map>
#include <string>

namespace cleave {

/// Returns the bytes outside of the arena that exchanges of a rank need if
/// ranks are processes: what is in flight at once in the entry "train", and in
/// "evaluate" after it; without "train", in any entry. Ranks that are threads
/// need none.
int64_t messageBytes(const runtime::Program &program);

/// The same for each entry alone.
std::map<std::string, int64_t>
messageBytesOfEntries(const runtime::Program &program);

} // namespace cleave

#endif // CLEAVE_EXECUTABLE_TRANSFORMS_MESSAGEMEMORY_H
