//===- CollectiveKind.h - Kinds of collectives ---------------- -*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SUPPORT_COLLECTIVEKIND_H
#define CLEAVE_SUPPORT_COLLECTIVEKIND_H

#include "llvm/ADT/StringRef.h"
#include <cstdint>
#include <optional>

namespace cleave {

/// The kinds of collectives, from the plan of a reshard to the executable. The
/// numbers are those of Communicator.h and of the attribute in IR
/// (Dialect/Graph/IR/Kinds.td).
enum class CollectiveKind : uint8_t {
  AllReduce,
  AllGather,
  ReduceScatter,
  AllToAll,
  Permute,
  Broadcast,
  Reduce,
  /// Between stages: one rank sends, and one receives.
  Send,
  Receive,
  /// Steps of a reshard alone: each rank takes its slice of what it has, which
  /// sends nothing; and the next shard of a ring, a permutation in the end.
  Slice,
  Rotate,
  /// As many rows to each member as values say.
  AllToAllRows
};

inline constexpr llvm::StringLiteral kCollectiveNames[] = {
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all",
    "permute",    "broadcast",  "reduce",         "send",
    "receive",    "slice",      "rotate",         "all_to_all_rows"};

inline llvm::StringRef stringifyCollectiveKind(CollectiveKind kind) {
  return kCollectiveNames[static_cast<size_t>(kind)];
}

/// The kind of a name or number; nothing for others.
inline std::optional<CollectiveKind>
symbolizeCollectiveKind(llvm::StringRef name) {
  for (size_t i = 0; i < std::size(kCollectiveNames); ++i)
    if (name == kCollectiveNames[i])
      return static_cast<CollectiveKind>(i);
  return std::nullopt;
}
inline std::optional<CollectiveKind> symbolizeCollectiveKind(uint32_t number) {
  if (number < std::size(kCollectiveNames))
    return static_cast<CollectiveKind>(number);
  return std::nullopt;
}

} // namespace cleave

#endif // CLEAVE_SUPPORT_COLLECTIVEKIND_H
