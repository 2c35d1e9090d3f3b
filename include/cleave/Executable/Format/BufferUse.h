//===- BufferUse.h - Memory used by commands --------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_FORMAT_BUFFERUSE_H
#define CLEAVE_EXECUTABLE_FORMAT_BUFFERUSE_H

#include "cleave/Executable/Format/Program.h"
#include <set>

namespace cleave::runtime {

/// The buffers of its part that a command refers to.
std::set<int32_t> buffersOf(const Command &command);

/// Those of them that it writes.
std::set<int32_t> writtenBuffersOf(const Command &command);

/// Bytes of a buffer that a command reads, or that it writes (and may read).
struct BufferRange {
  int32_t buffer = -1;
  /// From the start of the buffer.
  int64_t begin = 0, end = 0;
  bool written = false;

  bool operator==(const BufferRange &) const = default;
};

/// What a command uses: the bytes from the first to the last element of the
/// matrices of products and of what is gathered, scattered or reduced; the
/// whole of any other buffer.
std::vector<BufferRange> rangesOf(const Part &part, const Command &command);

/// What a collective sends (`CollectiveBlock::src`), or what it receives
/// (`dst`), as above; nothing for an end that it does not have.
std::vector<BufferRange> rangesOf(const Part &part,
                                  const CollectiveCommand &command,
                                  Ref CollectiveBlock::*end);

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
  bool meet(const std::vector<BufferRange> &a,
            const std::vector<BufferRange> &b) const;

private:
  bool overlap(const BufferRange &one, const BufferRange &other) const;

  const Part &part;
  std::vector<PartRuns> runs;
};

/// The runs of each part, in all entries.
std::vector<std::vector<PartRuns>> runsOfParts(const Program &program);

} // namespace cleave::runtime

#endif // CLEAVE_EXECUTABLE_FORMAT_BUFFERUSE_H
