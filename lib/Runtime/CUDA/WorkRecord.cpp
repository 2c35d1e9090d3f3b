//===- WorkRecord.cpp - What was enqueued on which stream -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "WorkRecord.h"
#include "cleave/Executable/Format/BufferUse.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/JSON.h"

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;
namespace json = llvm::json;

/// `range` in one run of its part.
static MemoryRange place(const Part &part, llvm::ArrayRef<int64_t> row,
                         const BufferRange &range) {
  auto buffer = static_cast<size_t>(range.buffer);
  return {part.buffers[buffer].tier ? Place::Tier : Place::Arena,
          row[buffer] + range.begin, range.end - range.begin};
}

MemoryUse MemoryUse::of(const Part &part, llvm::ArrayRef<int64_t> row,
                        const Command &command) {
  MemoryUse use;
  for (const BufferRange &range : rangesOf(part, command))
    (range.written ? use.writes : use.reads).push_back(place(part, row, range));
  return use;
}

std::vector<MemoryRange> MemoryUse::ofBlocks(const Part &part,
                                             llvm::ArrayRef<int64_t> row,
                                             const CollectiveCommand &command,
                                             Ref CollectiveBlock::*end) {
  std::vector<MemoryRange> ranges;
  for (const BufferRange &range : rangesOf(part, command, end))
    ranges.push_back(place(part, row, range));
  return ranges;
}

bool cuda::overlaps(llvm::ArrayRef<MemoryRange> ranges,
                    const MemoryRange &other) {
  return llvm::any_of(ranges, [&](const MemoryRange &range) {
    return range.place == other.place &&
           range.offset < other.offset + other.bytes &&
           other.offset < range.offset + range.bytes;
  });
}

std::vector<MemoryRange> cuda::rangesAt(Place place,
                                        std::vector<MemoryRange> ranges) {
  for (MemoryRange &range : ranges)
    range.place = place;
  return ranges;
}

llvm::Expected<std::unique_ptr<WorkRecord>> WorkRecord::open(const char *path,
                                                             int64_t rank) {
  if (!path || !*path)
    return nullptr;
  std::string file = path + std::to_string(rank);
  std::error_code error;
  auto out = std::make_unique<llvm::raw_fd_ostream>(
      file, error, llvm::sys::fs::CD_OpenAlways, llvm::sys::fs::FA_Write,
      llvm::sys::fs::OF_Append);
  if (error)
    return makeError(file + ": cannot write: " + error.message());
  return std::unique_ptr<WorkRecord>(new WorkRecord(std::move(out)));
}

static json::Array listOf(const std::vector<MemoryRange> &ranges) {
  json::Array list;
  for (const MemoryRange &range : ranges)
    if (range.bytes > 0)
      list.push_back(
          json::Array{int64_t(range.place), range.offset, range.bytes});
  return list;
}

void WorkRecord::host(llvm::StringRef label, const MemoryUse &use) {
  *out << json::Value(json::Object{{"do", "host"},
                                   {"label", label},
                                   {"reads", listOf(use.reads)},
                                   {"writes", listOf(use.writes)}})
       << "\n";
  out->flush();
}

void WorkRecord::work(llvm::StringRef stream, llvm::StringRef label,
                      const MemoryUse &use) {
  *out << json::Value(json::Object{{"do", "work"},
                                   {"stream", stream},
                                   {"label", json::fixUTF8(label)},
                                   {"reads", listOf(use.reads)},
                                   {"writes", listOf(use.writes)}})
       << "\n";
  out->flush();
}

void WorkRecord::order(llvm::StringRef what, llvm::StringRef stream,
                       const void *event) {
  *out << json::Value(json::Object{
              {"do", what},
              {"stream", stream},
              {"event",
               static_cast<int64_t>(reinterpret_cast<intptr_t>(event))}})
       << "\n";
  out->flush();
}
