//===- SocketRendezvous.h - How processes find each other -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_COMMUNICATOR_MEETING_SOCKETRENDEZVOUS_H
#define CLEAVE_LIB_RUNTIME_COMMUNICATOR_MEETING_SOCKETRENDEZVOUS_H

#include "cleave/Runtime/Communicator/SocketWorld.h"
#include <string>
#include <vector>

namespace cleave::runtime {

/// Connects each two processes of a launch. Rank 0 collects where all of them
/// listen, and tells all of them. Sets `sockets` to the connection to each
/// rank, -1 for the own one; returns the error, or "".
std::string connectAll(const SocketLaunch &launch, std::vector<int> &sockets);

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_COMMUNICATOR_MEETING_SOCKETRENDEZVOUS_H
