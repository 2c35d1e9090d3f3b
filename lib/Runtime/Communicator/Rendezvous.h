//===- Rendezvous.h - Rendezvous of threads ---------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_COMMUNICATOR_RENDEZVOUS_H
#define CLEAVE_LIB_RUNTIME_COMMUNICATOR_RENDEZVOUS_H

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace cleave::runtime {

/// The ranks that are alive, and the first failure.
class WorldState {
public:
  WorldState(int ranks, int cores);

  int size() const { return static_cast<int>(gone.size()); }
  bool failed() const { return failure.load(); }
  /// Sets the failure; the message is that of the first rank to fail.
  void fail(int rank, const std::string &message);
  std::string error() const;

  /// A rank ends; a later wait for it fails.
  void leave(int rank) {
    gone[static_cast<size_t>(rank)].store(true, std::memory_order_release);
  }
  bool hasLeft(int rank) const {
    return gone[static_cast<size_t>(rank)].load(std::memory_order_acquire);
  }

  /// The number of threads of all ranks: if there are more than cores, a
  /// spinning thread keeps another one from working.
  void addThreads(int count) { threads.fetch_add(count); }
  bool maySpin() const {
    return threads.load(std::memory_order_relaxed) <= cores;
  }

private:
  std::atomic<bool> failure{false};
  std::vector<std::atomic<bool>> gone;
  std::atomic<int> threads{0};
  int cores;
  mutable std::mutex mutex;
  std::string message;
};

/// Members that arrive, work, and finish, repeatedly. Rounds are numbered from
/// 1.
class Rendezvous {
public:
  explicit Rendezvous(size_t members)
      : arrivals(std::make_unique<Count[]>(members)), members(members) {}

  void arrive(size_t member, uint32_t time);
  void finish(size_t member, uint32_t time);

  /// True when all members have arrived (have finished); false when the world
  /// has failed, or fails now because a member has left.
  bool allArrived(uint32_t time, const std::vector<int32_t> &ranks,
                  WorldState &world) {
    return waitFor(arrived, time, ranks, world);
  }
  bool allFinished(uint32_t time, const std::vector<int32_t> &ranks,
                   WorldState &world) {
    return waitFor(finished, time, ranks, world);
  }

private:
  struct alignas(64) Count {
    std::atomic<uint32_t> value{0};
  };
  void add(Count &count, uint32_t time);
  bool waitFor(Count &count, uint32_t time, const std::vector<int32_t> &ranks,
               WorldState &world);

  Count arrived, finished;
  /// The number of arrivals of each member, for messages.
  std::unique_ptr<Count[]> arrivals;
  size_t members;
};

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_COMMUNICATOR_RENDEZVOUS_H
