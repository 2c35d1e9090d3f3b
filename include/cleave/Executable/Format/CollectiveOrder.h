//===- CollectiveOrder.h - Whether ranks wait for each other ------*- C++
//-*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_FORMAT_COLLECTIVEORDER_H
#define CLEAVE_EXECUTABLE_FORMAT_COLLECTIVEORDER_H

#include "cleave/Executable/Format/Program.h"

namespace cleave::runtime {

/// In which order the exchanges of a rank are done.
enum class CollectiveStreams : uint8_t {
  /// All collectives in one order, as on a GPU; transfers by sender and
  /// receiver.
  One,
  /// Those of each group in an order of their own, as between hosts.
  OfGroups
};

/// Finds exchanges, and agreements of hosts on checks, that would wait for each
/// other forever, given the order in which each rank starts and awaits its own.
/// `programs` has one program for each pipeline position. Returns a message
/// that names two of them, or "".
std::string findCollectiveDeadlock(const std::vector<Program> &programs,
                                   CollectiveStreams streams);

} // namespace cleave::runtime

#endif // CLEAVE_EXECUTABLE_FORMAT_COLLECTIVEORDER_H
