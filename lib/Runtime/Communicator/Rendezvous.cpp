//===- Rendezvous.cpp - Rendezvous of threads -----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Rendezvous.h"

#include <climits>
#include <ctime>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

using namespace cleave::runtime;

/// The interval at which a sleeping thread checks whether the world has failed.
static constexpr timespec lookAgain{0, 50 * 1000 * 1000};

static void sleepWhile(std::atomic<uint32_t> &word, uint32_t value) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), FUTEX_WAIT_PRIVATE,
            value, &lookAgain, nullptr, 0);
}

static void wakeAll(std::atomic<uint32_t> &word) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), FUTEX_WAKE_PRIVATE,
            INT_MAX, nullptr, nullptr, 0);
}

WorldState::WorldState(int ranks, int wanted)
    : gone(static_cast<size_t>(ranks)), cores(wanted) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (cores == 0)
    cores = ::sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
}

void WorldState::fail(int rank, const std::string &text) {
  std::lock_guard<std::mutex> lock(mutex);
  if (failed())
    return;
  message = "rank " + std::to_string(rank) + ": " + text;
  failure.store(true);
}

std::string WorldState::error() const {
  std::lock_guard<std::mutex> lock(mutex);
  return message;
}

void Rendezvous::add(Count &count, uint32_t time) {
  uint32_t target = time * static_cast<uint32_t>(members);
  // Only the last one has threads to wake.
  if (count.value.fetch_add(1, std::memory_order_acq_rel) + 1 == target)
    wakeAll(count.value);
}

void Rendezvous::arrive(size_t member, uint32_t time) {
  arrivals[member].value.store(time, std::memory_order_relaxed);
  add(arrived, time);
}

void Rendezvous::finish(size_t, uint32_t time) { add(finished, time); }

bool Rendezvous::waitFor(Count &count, uint32_t time,
                         const std::vector<int32_t> &ranks, WorldState &world) {
  uint32_t target = time * static_cast<uint32_t>(members);
  auto reached = [&](uint32_t value) {
    return static_cast<int32_t>(value - target) >= 0;
  };
  // About ten microseconds.
  for (int i = world.maySpin() ? 4000 : 20; i > 0; --i) {
    if (reached(count.value.load(std::memory_order_acquire)))
      return true;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  while (true) {
    uint32_t value = count.value.load(std::memory_order_acquire);
    if (reached(value))
      return true;
    if (world.failed())
      return false;
    // The order matters: the count of a rank that has left is final.
    for (size_t i = 0; i < members; ++i)
      if (world.hasLeft(ranks[i]) &&
          static_cast<int32_t>(
              arrivals[i].value.load(std::memory_order_relaxed) - time) < 0)
        world.fail(ranks[i], "has ended while others wait for it");
    sleepWhile(count.value, value);
  }
}
