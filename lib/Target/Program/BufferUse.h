//===- BufferUse.h - Which memory commands touch ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_TARGET_PROGRAM_BUFFERUSE_H
#define CLEAVE_LIB_TARGET_PROGRAM_BUFFERUSE_H

#include "cleave/Runtime/Program.h"
#include <set>

namespace cleave {

/// The buffers that a command refers to, of its part.
std::set<int32_t> buffersOf(const runtime::Command &command);

/// Which buffers of a part share memory: in the arena, one may take the place
/// of another, in any action of the part.
class SharedMemory {
public:
  SharedMemory(const runtime::Part &part,
               std::vector<const runtime::Action *> actions)
      : part(part), actions(std::move(actions)) {}

  /// Whether a buffer of `a` and one of `b` have a byte in common.
  bool meet(const std::set<int32_t> &a, const std::set<int32_t> &b) const;

private:
  const runtime::Part &part;
  std::vector<const runtime::Action *> actions;
};

/// The actions of each part, of all entries.
std::vector<std::vector<const runtime::Action *>>
actionsOfParts(const runtime::Program &program);

} // namespace cleave

#endif // CLEAVE_LIB_TARGET_PROGRAM_BUFFERUSE_H
