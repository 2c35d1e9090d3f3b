//===- SocketWorld.h - Ranks that are processes, over TCP -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_COMMUNICATOR_SOCKETWORLD_H
#define CLEAVE_RUNTIME_COMMUNICATOR_SOCKETWORLD_H

#include "cleave/Runtime/Communicator/Communicator.h"
#include <functional>
#include <memory>
#include <string>

namespace cleave::runtime {

/// What a process knows of its launch.
struct SocketLaunch {
  int rank = 0, size = 1;
  /// Where rank 0 is, and the ports of which it listens at the first free one.
  std::string host;
  int port = 0, ports = 1;
  /// Tells launches apart that meet at neighbouring ports.
  uint64_t key = 0;
  /// Whether all processes are on this machine.
  bool local = false;
  /// What all processes of the launch know and no others do. Without it, the
  /// file in which rank 0 leaves one; without either, who can reach the port
  /// can join.
  std::string secret, secretFile;
  /// The longest time for which one waits for others.
  int patienceSeconds = 300;
  /// Asked while this process waits for others to come; true ends the launch.
  std::function<bool()> interrupted;
  /// The processes of this machine.
  int processesHere = 1;
};

/// The communicators of ranks that are processes, connected by TCP. Nothing
/// else is needed, and no other program takes part.
class SocketWorld {
public:
  /// Connects this process with all others. Null, with a text in `error`, on
  /// failure.
  static std::unique_ptr<SocketWorld> connect(const SocketLaunch &launch,
                                              std::string &error);
  /// Without a failure, waits for the others to end too.
  ~SocketWorld();

  /// A communicator, closed by its user; the processes open theirs in one
  /// order. The world and the team must outlive it. Null, with a text in
  /// `error`, after a failure.
  cleave_communicator *open(const cleave_team &team, std::string &error);

  struct Shared;

private:
  explicit SocketWorld(std::unique_ptr<Shared> shared);

  std::unique_ptr<Shared> shared;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_COMMUNICATOR_SOCKETWORLD_H
