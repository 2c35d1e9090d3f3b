//===- Heartbeat.h - Whether the other processes are alive ------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// MPI waits for ever for a process that has stopped. Beside it, a thread of
/// each process tells all others four times a second, in datagrams, that it is
/// there. It needs microseconds of a core, so that a process that is merely
/// slow is heard; and who could not listen itself does not judge the others.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_MPI_HEARTBEAT_H
#define CLEAVE_LIB_RUNTIME_MPI_HEARTBEAT_H

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace cleave::runtime {

/// Where the datagrams of a process may be sent to: its IPv4 addresses, in
/// network order, up to the first 0, and a port. Which of them the others reach
/// shows in what arrives.
struct Address {
  static constexpr int kHosts = 8;
  uint32_t hosts[kHosts] = {};
  uint16_t port = 0;
};

class Heartbeat {
public:
  ~Heartbeat();

  /// Opens a socket; with `local`, for processes of this machine only. Why it
  /// failed, or "".
  std::string open(bool local, Address &own);

  /// Begins to speak and to listen. `key` is the same in all processes of a
  /// launch and in no others.
  void start(int rank, uint64_t key, std::vector<Address> addresses);

  /// Returns when all others were heard, -1, or, soon, a rank that was not.
  /// Such a rank is not judged: the network keeps back what it says.
  int waitUntilHeard() const;

  /// Asked by the thread that works; when it does not ask soon after a
  /// failure, it hangs, or is busy for nothing: then the process ends.
  bool failed() {
    asked.store(true, std::memory_order_relaxed);
    return failure.load(std::memory_order_acquire);
  }
  /// "rank R: ..."; "" while all is well.
  std::string error() const;

  /// Says, here and to all others, that this process cannot go on.
  void fail(const std::string &message);
  /// This process waits for others no more.
  void leave() { leaving.store(true); }
  /// This process waits for the others to close communicator `number` too; 0:
  /// for none any more.
  void setClosing(int32_t number) { closing.store(number); }
  bool isClosing(int rank, int32_t number) const {
    return peers[static_cast<size_t>(rank)].closing.load() == number;
  }
  bool hasLeft(int rank) const {
    return peers[static_cast<size_t>(rank)].left.load();
  }
  /// Notes that `rank` is missing, here only.
  void blame(int rank, const std::string &message);

private:
  struct Peer {
    Address address;
    /// When it was heard last; 0 before it ever was.
    std::atomic<int64_t> heard{0};
    std::atomic<int32_t> closing{0};
    std::atomic<bool> left{false};
  };
  struct Packet;

  void run();
  /// What this process has told the others that it failed with, or "".
  std::string failureOfOwn() const;
  void send(uint32_t kind, const std::string &text) const;
  void receive();
  void judge(int64_t now);
  void note(int rank, const std::string &message);
  void endIfUnnoticed(int64_t now);

  int socket = -1;
  int rank = 0;
  uint64_t key = 0;
  /// One for each process.
  std::unique_ptr<Peer[]> peers;
  size_t count = 0;
  std::thread thread;
  std::atomic<int32_t> closing{0};
  /// What this process has failed with.
  std::string ownFailure;
  std::atomic<bool> ended{false}, leaving{false}, failure{false}, asked{false};
  int64_t failedAt = 0;
  mutable std::mutex mutex;
  std::string message;
};

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_MPI_HEARTBEAT_H
