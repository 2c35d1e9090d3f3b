//===- BufferUse.h - Memory used by commands --------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CORE_BUFFERUSE_H
#define CLEAVE_RUNTIME_CORE_BUFFERUSE_H

#include "cleave/Runtime/Core/Program.h"
#include <set>

namespace cleave::runtime {

/// The buffers of its part that a command refers to.
std::set<int32_t> buffersOf(const Command &command);

/// Those of them that it writes.
std::set<int32_t> writtenBuffersOf(const Command &command);

/// The runs of a part in one entry.
struct PartRuns {
  const Rows *rows;
  int64_t count;
};

/// The buffers of a part that share memory: in the arena, one may overlap
/// another, in any run of the part.
class SharedMemory {
public:
  SharedMemory(const Part &part, std::vector<PartRuns> runs)
      : part(part), runs(std::move(runs)) {}

  /// Whether a buffer of `a` and one of `b` share a byte.
  bool meet(const std::set<int32_t> &a, const std::set<int32_t> &b) const;

private:
  const Part &part;
  std::vector<PartRuns> runs;
};

/// The runs of each part, in all entries.
std::vector<std::vector<PartRuns>> runsOfParts(const Program &program);

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CORE_BUFFERUSE_H
