//===- HeartbeatTest.cpp - Whether other processes are alive --------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// Several heartbeats in one process, as if each were a process of its own. They
// also run under ThreadSanitizer.
//
//===----------------------------------------------------------------------===//

#include "Runtime/MPI/Heartbeat.h"
#include "gtest/gtest.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

using namespace cleave::runtime;

namespace {

/// Heartbeats of this machine that know each other's addresses; none has
/// started. A thread asks each of them again and again, as one that works does:
/// a failure that nobody notices would end the process.
struct Launch {
  std::vector<std::unique_ptr<Heartbeat>> ranks;
  std::vector<Address> addresses;
  std::atomic<bool> ended{false};
  std::thread asks;

  explicit Launch(int count) : addresses(static_cast<size_t>(count)) {
    for (Address &address : addresses) {
      ranks.push_back(std::make_unique<Heartbeat>());
      EXPECT_EQ(ranks.back()->open(/*local=*/true, address), "");
    }
    asks = std::thread([this] {
      while (!ended) {
        for (const std::unique_ptr<Heartbeat> &one : ranks)
          (void)one->failed();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
  }
  ~Launch() {
    ended = true;
    asks.join();
  }
  Heartbeat &start(int rank) {
    Heartbeat &own = *ranks[static_cast<size_t>(rank)];
    own.start(rank, /*key=*/17, addresses);
    return own;
  }
};

/// Waits until `heartbeat` has failed; what it says then.
std::string failureOf(Heartbeat &heartbeat) {
  auto begin = std::chrono::steady_clock::now();
  while (!heartbeat.failed() &&
         std::chrono::steady_clock::now() - begin < std::chrono::seconds(20))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return heartbeat.error();
}

TEST(HeartbeatTest, RanksHearEachOther) {
  Launch launch(3);
  for (int rank = 0; rank < 3; ++rank)
    launch.start(rank);
  for (const std::unique_ptr<Heartbeat> &one : launch.ranks)
    EXPECT_EQ(one->waitUntilHeard(), -1);
  launch.ranks[2]->fail("out of paper");
  for (const std::unique_ptr<Heartbeat> &one : launch.ranks)
    EXPECT_EQ(failureOf(*one), "rank 2: out of paper");
}

/// The address of a rank changes to the one that it is heard from, while
/// another thread tells all ranks of a failure.
TEST(HeartbeatTest, RankIsHeardLateBesideAFailure) {
  Launch launch(3);
  Heartbeat &first = launch.start(0);
  first.fail("out of paper");
  Heartbeat &second = launch.start(1), &third = launch.start(2);
  EXPECT_EQ(first.waitUntilHeard(), -1);
  EXPECT_EQ(failureOf(second), "rank 0: out of paper");
  EXPECT_EQ(failureOf(third), "rank 0: out of paper");
}

/// Any thread may report a failure, while others ask for it.
TEST(HeartbeatTest, ThreadsOfOneRankFailAtOnce) {
  Launch launch(2);
  Heartbeat &first = launch.start(0), &second = launch.start(1);
  EXPECT_EQ(first.waitUntilHeard(), -1);
  std::thread one([&] { first.fail("one"); }), two([&] { first.fail("two"); });
  std::string text = failureOf(first);
  one.join();
  two.join();
  EXPECT_TRUE(text == "rank 0: one" || text == "rank 0: two") << text;
  EXPECT_EQ(failureOf(second), text);
  first.setClosing(3);
  first.leave();
}

} // namespace
