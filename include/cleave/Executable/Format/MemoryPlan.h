//===- MemoryPlan.h - The memory that a program needs -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_FORMAT_MEMORYPLAN_H
#define CLEAVE_EXECUTABLE_FORMAT_MEMORYPLAN_H

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace cleave::runtime {

/// The memory of a device at each pipeline position.
struct MemoryPlan {
  /// A tensor with an offset of its own at all times.
  struct Fixed {
    std::string role, name;
    int64_t bytes = 0;
  };
  struct Entry {
    int64_t peakBytes = 0, lowerBoundBytes = 0;
    /// The most bytes of gradients, and what is kept between steps; 0: none.
    int64_t gradientPeakBytes = 0, keptBytes = 0;
    /// The most bytes of messages outside of the arena.
    int64_t messageBytes = 0;
    /// The bytes of a device at the peak, by the names of `exec::MemoryKind`.
    std::map<std::string, int64_t> kindsAtPeak;
  };
  struct Position {
    int64_t number = 0;
    int64_t arenaBytes = 0, threads = 0;
    /// In the second tier; 0: nothing is.
    int64_t tierBytes = 0;
    /// In the arena at all times: arguments, and bytes by role.
    std::vector<Fixed> fixed;
    std::map<std::string, int64_t> bytesOfRoles;
    /// Of the arena, what entries use in turn.
    int64_t sharedBytes = 0;
    /// Outside of the arena: of the library, and of messages.
    int64_t libraryBytes = 0, messageBytes = 0;
    std::map<std::string, Entry> entries;

    /// The bytes that a device at this position needs.
    int64_t neededBytes() const {
      return arenaBytes + libraryBytes + messageBytes;
    }
  };
  std::vector<Position> positions;
  /// The index of the first position with the largest arena.
  size_t largest = 0;

  /// The first position after the largest arena that needs more than it, and
  /// than any before; null if there are no positions.
  const Position *most() const {
    if (positions.empty())
      return nullptr;
    const Position *found = &positions[largest];
    for (const Position &position : positions)
      if (position.neededBytes() > found->neededBytes())
        found = &position;
    return found;
  }
  /// The bytes that the device needs that needs most.
  int64_t neededBytes() const {
    const Position *position = most();
    return position ? position->neededBytes() : 0;
  }
};

} // namespace cleave::runtime

#endif // CLEAVE_EXECUTABLE_FORMAT_MEMORYPLAN_H
