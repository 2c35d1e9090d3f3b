//===- WorkRecord.h - What was enqueued on which stream ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_CUDA_WORKRECORD_H
#define CLEAVE_LIB_RUNTIME_CUDA_WORKRECORD_H

#include "cleave/Executable/Format/Program.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/raw_ostream.h"
#include <memory>

namespace cleave::runtime::cuda {

/// Memory of a rank: the arena, the second tier, the staging memory of
/// collectives by NCCL, the host's copy of what is exchanged through it, and
/// the pinned memory of the host for inputs, scalars and results.
enum class Place : uint8_t { Arena, Tier, Staging, Mirror, Pinned };

/// Bytes of a place.
struct MemoryRange {
  Place place = Place::Arena;
  int64_t offset = 0, bytes = 0;
};

/// What a command reads and writes in one run of its part; see `rangesOf`.
struct MemoryUse {
  std::vector<MemoryRange> reads, writes;

  static MemoryUse of(const Part &part, llvm::ArrayRef<int64_t> row,
                      const Command &command);
  /// The ranges of what a collective sends, or of what it receives.
  static std::vector<MemoryRange> ofBlocks(const Part &part,
                                           llvm::ArrayRef<int64_t> row,
                                           const CollectiveCommand &command,
                                           Ref CollectiveBlock::*end);
};

/// Whether one of the ranges has bytes of another one.
bool overlaps(llvm::ArrayRef<MemoryRange> ranges, const MemoryRange &other);

/// The same ranges of another place.
std::vector<MemoryRange> rangesAt(Place place, std::vector<MemoryRange> ranges);

/// A file with a line of JSON for each call that orders or does work, so that a
/// check can tell whether any two commands that use the same memory, one of
/// them writing, are ordered:
///   {"do": "work", "stream": S, "label": L, "reads": [[place, offset, bytes],
///     ...], "writes": ...}   places are the numbers of `Place`
///   {"do": "event" | "wait", "stream": S, "event": E}
///   {"do": "finish", "stream": S}    the host waits for the stream
///   {"do": "reach", "event": E}      the host waits for the event
///   {"do": "host", "label": L, "reads": ..., "writes": ...}   done at once
/// What other ranks do with a rank's copy on the host is a stream of its own.
class WorkRecord {
public:
  /// Appends to the file `path`, the number of the rank at its end; without a
  /// path there is no record.
  static llvm::Expected<std::unique_ptr<WorkRecord>> open(const char *path,
                                                          int64_t rank);

  void work(llvm::StringRef stream, llvm::StringRef label,
            const MemoryUse &use);
  void host(llvm::StringRef label, const MemoryUse &use);
  void event(llvm::StringRef stream, const void *event) {
    order("event", stream, event);
  }
  void wait(llvm::StringRef stream, const void *event) {
    order("wait", stream, event);
  }
  void finish(llvm::StringRef stream) { order("finish", stream, nullptr); }
  void reach(const void *event) { order("reach", "", event); }

private:
  explicit WorkRecord(std::unique_ptr<llvm::raw_fd_ostream> out)
      : out(std::move(out)) {}
  void order(llvm::StringRef what, llvm::StringRef stream, const void *event);

  std::unique_ptr<llvm::raw_fd_ostream> out;
};

} // namespace cleave::runtime::cuda

#endif // CLEAVE_LIB_RUNTIME_CUDA_WORKRECORD_H
