//===- Heartbeat.h - Detection of processes that have ended -----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// MPI waits forever for a process that has stopped. Therefore a thread of each
/// process sends a datagram to all others four times a second. It needs
/// microseconds of a core, so that a slow process is still heard; a process
/// that could not listen itself does not judge the others.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_MPI_HEARTBEAT_H
#define CLEAVE_LIB_RUNTIME_MPI_HEARTBEAT_H

#include "cleave/Runtime/Communicator/FailureNotice.h"
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace cleave::runtime {

/// The addresses of a process for datagrams: its IPv4 addresses, in network
/// order, up to the first 0, and a port. Arriving datagrams show which of them
/// is reachable.
struct Address {
  static constexpr int kHosts = 8;
  uint32_t hosts[kHosts] = {};
  uint16_t port = 0;
};

class Heartbeat {
public:
  ~Heartbeat();

  /// Opens a socket; with `local`, for processes of this machine only. Returns
  /// the error, or "".
  std::string open(bool local, Address &own);

  /// Begins to send and to listen. `key` is the same in all processes of a
  /// launch and in no others.
  void start(int rank, uint64_t key, std::vector<Address> addresses);

  /// Returns -1 when all others were heard, or, soon, a rank that was not. Such
  /// a rank does not count as failed: the network drops its datagrams.
  int waitUntilHeard() const;

  /// Called regularly by the working thread. If it is not called soon after a
  /// failure, that thread hangs or is busy in vain: then the process ends.
  bool failed() {
    notice.ask();
    return failure.load(std::memory_order_acquire);
  }
  /// What a process does, as it says with each heartbeat.
  enum State : int32_t { Works, Waits, Writes };
  /// Whether this process waits for others, and whether it writes what others
  /// wait for.
  void addWaiting(int more) { waiting.fetch_add(more); }
  void setBusy(bool on) { writing.store(on); }
  State stateOf(int rank) const {
    return static_cast<State>(peers[static_cast<size_t>(rank)].state.load());
  }
  /// Whether that thread has not noticed a failure in time; the process ends
  /// `grace` seconds later.
  bool isUnnoticed(int grace) { return notice.isUnnoticed(grace); }
  /// "rank R: ..."; "" without a failure.
  std::string error() const;

  /// Tells this and all other processes that this process cannot continue.
  void fail(const std::string &message);
  /// This process does not wait for others any more.
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
  /// Records that `rank` is missing, in this process only.
  void blame(int rank, const std::string &message);
  /// Ends all processes because of `rank`.
  void accuse(int rank, const std::string &message);

private:
  struct Peer {
    /// Guarded by the mutex.
    Address address;
    /// When it was heard last; 0 before the first time.
    std::atomic<int64_t> heard{0};
    std::atomic<int32_t> closing{0}, state{0};
    std::atomic<bool> left{false};
  };
  struct Packet;

  void run();
  /// The failure that this process has sent to the others, or "".
  std::string failureOfOwn() const;
  void send(uint32_t kind, const std::string &text) const;
  void receive();
  void judge(int64_t now);
  /// With `tell`, the others are informed too.
  bool note(int rank, const std::string &message, bool tell = false);

  int socket = -1;
  int rank = 0;
  uint64_t key = 0;
  /// One for each process.
  std::unique_ptr<Peer[]> peers;
  size_t count = 0;
  std::thread thread;
  std::atomic<int32_t> closing{0}, waiting{0}, accused{-1};
  std::atomic<bool> writing{false}, ended{false}, leaving{false};
  std::atomic<bool> failure{false};
  FailureNotice notice;
  mutable std::mutex mutex;
  /// Why the launch has failed, and the failure of this process.
  std::string message, ownFailure;
};

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_MPI_HEARTBEAT_H
