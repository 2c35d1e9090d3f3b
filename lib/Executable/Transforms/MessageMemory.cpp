//===- MessageMemory.cpp - Memory of messages between processes -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Messages have buffers from the beginning of their exchange to its wait.
/// Buffers are reused by size, for requests of at least half of it (see
/// MessageBuffers.h in lib/Runtime/MPI), as they are here.
///
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Transforms/MessageMemory.h"
#include "cleave/Executable/Format/ShardLayout.h"
#include "cleave/Support/RowOffsets.h"
#include "llvm/ADT/ArrayRef.h"
#include <map>
#include <set>
#include <vector>

using namespace cleave;
using namespace cleave::runtime;

/// A sum of more elements is shared among the members (see MpiCollectives.cpp).
static constexpr int64_t kSharedElements = 2048;

/// The bytes of the messages that a rank sends and receives in an exchange.
static std::pair<int64_t, int64_t> bytesOf(const CollectiveCommand &command) {
  int64_t one = command.elements() * byteSize(command.dtype),
          all = one * partCount(command.axes);
  switch (command.collective) {
  case CollectiveKind::AllReduce:
    // Each member adds up its share of all but small ones.
    if (command.elements() > kSharedElements) {
      int64_t members = partCount(command.axes);
      int64_t share = (command.elements() + members - 1) / members;
      return {one, share * members * byteSize(command.dtype)};
    }
    return {one, all};
  case CollectiveKind::AllGather:
  case CollectiveKind::Reduce:
    return {one, all};
  case CollectiveKind::ReduceScatter:
  case CollectiveKind::AllToAll:
    return {all, all};
  case CollectiveKind::AllToAllRows: {
    // With the offsets of one member, or of all.
    int64_t members = partCount(command.axes),
            offsets = 8 * RowOffsets::count(static_cast<int>(members)),
            row = byteSize(command.dtype);
    for (int64_t size : llvm::ArrayRef(command.sizes).drop_front())
      row *= size;
    return {one + offsets, command.bound * row + offsets * members};
  }
  case CollectiveKind::Send:
    return {one, 0};
  case CollectiveKind::Receive:
  case CollectiveKind::Broadcast:
    return {0, one};
  case CollectiveKind::Permute:
  case CollectiveKind::Slice:
  case CollectiveKind::Rotate:
    break;
  }
  return {one, one};
}

namespace {
/// The buffers of one rank.
class Buffers {
public:
  int64_t take(int64_t bytes) {
    if (bytes == 0)
      return 0;
    auto it = free.lower_bound(bytes);
    if (it != free.end() && *it / 2 <= bytes) {
      int64_t size = *it;
      free.erase(it);
      return size;
    }
    held += bytes;
    return bytes;
  }
  void give(int64_t bytes) {
    if (bytes)
      free.insert(bytes);
  }
  int64_t bytes() const { return held; }

private:
  std::multiset<int64_t> free;
  int64_t held = 0;
};
} // namespace

/// The bytes of the buffers of `entries`, one after another: later ones use
/// those of earlier ones.
static int64_t bytesOf(const Program &program,
                       std::initializer_list<const Entry *> entries) {
  Buffers buffers;
  /// Those in flight, by token and, for a transfer, micro-batch.
  std::map<std::pair<int32_t, int32_t>,
           std::vector<std::pair<int64_t, int64_t>>>
      open;
  for (const Entry *entry : entries)
    for (const Action &action : entry->actions)
      for (const Command &command :
           program.parts[static_cast<size_t>(action.part)].commands) {
        if (command.kind == CommandKind::Collective) {
          const CollectiveCommand &c = command.collective;
          auto [out, in] = bytesOf(c);
          int64_t sent = buffers.take(out), received = buffers.take(in);
          open[{c.token, c.endsLater() ? action.microBatch : -1}].push_back(
              {sent, received});
        } else if (command.kind == CommandKind::Wait) {
          auto it = open.find({command.wait.token,
                               command.wait.transfer ? action.microBatch : -1});
          if (it == open.end())
            continue;
          for (auto [out, in] : it->second) {
            buffers.give(out);
            buffers.give(in);
          }
          open.erase(it);
        }
      }
  return buffers.bytes();
}

std::map<std::string, int64_t>
cleave::messageBytesOfEntries(const Program &program) {
  std::map<std::string, int64_t> bytes;
  for (const auto &[name, entry] : program.entries)
    bytes[name] = bytesOf(program, {&entry});
  return bytes;
}

int64_t cleave::messageBytes(const Program &program) {
  auto train = program.entries.find("train"),
       evaluate = program.entries.find("evaluate");
  if (train != program.entries.end())
    return evaluate == program.entries.end()
               ? bytesOf(program, {&train->second})
               : bytesOf(program, {&train->second, &evaluate->second});
  int64_t most = 0;
  for (const auto &[name, bytes] : messageBytesOfEntries(program))
    most = std::max(most, bytes);
  return most;
}
