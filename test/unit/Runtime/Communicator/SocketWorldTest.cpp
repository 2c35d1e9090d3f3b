//===- SocketWorldTest.cpp - Ranks that are connected by TCP --------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// Ranks are threads here, each with connections of its own, which notice
// nothing of that.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Communicator/SocketWorld.h"
#include "CommunicatorTrial.h"
#include "cleave/Runtime/Communicator/ThreadWorld.h"
#include "gtest/gtest.h"

#include <arpa/inet.h>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace cleave;
using runtime::SocketLaunch;
using runtime::SocketWorld;

namespace {

/// A socket at a port that nobody else has; it may listen. Connections get
/// ports from 32768 on by default, so that none takes one that was closed.
int openPort(int &port, bool listens = false) {
  static std::atomic<int> next{::getpid() * 101};
  int number = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto *raw = reinterpret_cast<sockaddr *>(&address);
  int failed = 1;
  for (int i = 0; i < 1000 && failed; ++i) {
    port = 20000 + (next++ & 0x7fffffff) % 12000;
    address.sin_port = htons(static_cast<uint16_t>(port));
    failed = ::bind(number, raw, sizeof(address));
  }
  EXPECT_EQ(failed, 0);
  if (listens)
    EXPECT_EQ(::listen(number, 8), 0);
  return number;
}

SocketLaunch launchOf(int rank, int size, int port) {
  SocketLaunch launch;
  launch.rank = rank;
  launch.size = size;
  launch.host = "localhost";
  launch.port = port;
  launch.local = true;
  launch.processesHere = size;
  launch.patienceSeconds = 20;
  return launch;
}

/// Ports that nobody has, all different.
std::vector<int> freePorts(size_t count) {
  std::vector<int> ports(count), sockets;
  for (int &port : ports)
    sockets.push_back(openPort(port));
  for (int socket : sockets)
    ::close(socket);
  return ports;
}

int freePort() { return freePorts(1)[0]; }

/// Runs `body` as each of `ranks` ranks, which meet at `port`.
void runRanks(int ranks, const std::function<void(cleave_communicator *)> &body,
              int port = freePort()) {
  cleave_team team = test::singleThread();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      std::string error;
      auto world = SocketWorld::connect(launchOf(rank, ranks, port), error);
      ASSERT_TRUE(world) << error;
      cleave_communicator *c = world->open(team, error);
      ASSERT_TRUE(c) << error;
      body(c);
      c->api->close(c);
    });
  for (std::thread &thread : threads)
    thread.join();
}

/// The errors of ranks that do not find each other.
std::vector<std::string> failuresOf(const std::vector<SocketLaunch> &launches) {
  std::vector<std::string> errors(launches.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < launches.size(); ++i)
    threads.emplace_back([&, i] {
      auto world = SocketWorld::connect(launches[i], errors[i]);
      EXPECT_FALSE(world);
    });
  for (std::thread &thread : threads)
    thread.join();
  return errors;
}

cleave_group *groupOfAll(cleave_communicator *c) {
  std::vector<int32_t> ranks(static_cast<size_t>(c->size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return c->api->group(c, ranks.data(), c->size);
}

cleave_collective collectiveOf(int32_t kind, const float *src, float *dst,
                               int64_t count) {
  cleave_collective what{};
  what.kind = kind;
  what.dtype = CLEAVE_F32;
  what.dims = 1;
  what.sizes[0] = count;
  what.src_strides[0] = what.dst_strides[0] = 1;
  what.src = src;
  what.dst = dst;
  return what;
}

TEST(SocketWorldTest, DrawnCollectives) {
  for (int ranks : {1, 2, 3, 4})
    runRanks(ranks, [&](cleave_communicator *c) {
      for (uint64_t seed = 0; seed < 9; ++seed)
        ASSERT_EQ(test::runTrial(c, seed, seed % 6 == 5 ? 20000 : 400), "");
    });
}

TEST(SocketWorldTest, RowsToAll) {
  for (int ranks : {1, 2, 3, 4, 8})
    runRanks(ranks, [&](cleave_communicator *c) {
      for (uint64_t seed = 0; seed < 8; ++seed)
        ASSERT_EQ(test::runRowTrial(c, seed), "");
    });
}

TEST(SocketWorldTest, RowsOfWrongNumbersEndAll) {
  for (auto [fault, text] : test::kRowFaults)
    runRanks(3, [&](cleave_communicator *c) {
      EXPECT_EQ(test::runRowFault(c, fault), text) << fault;
    });
}

/// A rank that ends while others wait for its numbers.
TEST(SocketWorldTest, RowsOfARankThatEnds) {
  std::atomic<int> met = 0;
  runRanks(3, [&](cleave_communicator *c) {
    int64_t offsets[] = {0, 2, 4, 6};
    std::vector<float> in(6, 1.0f), out(6, 7.0f);
    cleave_collective what =
        collectiveOf(CLEAVE_ALL_TO_ALL_ROWS, in.data(), out.data(), 6);
    what.bound = 6;
    what.send_offsets = what.receive_offsets = offsets;
    cleave_group *group = groupOfAll(c);
    cleave_request *request = c->api->prepare(group, &what, 1);
    const int waited = c->api->barrier(group);
    ++met;
    ASSERT_EQ(waited, 0);
    if (c->rank == 1) {
      // Its end would be found by others that still wait at the barrier.
      while (met < 3)
        std::this_thread::yield();
      return;
    }
    EXPECT_TRUE(c->api->start(request) || c->api->wait(request));
    EXPECT_STREQ(c->api->error(c),
                 "rank 1: has closed the program while others wait for it");
    EXPECT_EQ(out, std::vector<float>(6, 7.0f));
    c->api->release(request);
  });
}

TEST(SocketWorldTest, LargeMessages) {
  runRanks(3, [&](cleave_communicator *c) {
    for (int32_t kind = CLEAVE_ALL_REDUCE; kind <= CLEAVE_SEND; ++kind)
      ASSERT_EQ(
          test::runTrial(c, 100 + static_cast<uint64_t>(kind), 60000, kind),
          "");
  });
}

/// Sums of numbers of very different sizes round differently in other orders.
TEST(SocketWorldTest, SumsHaveTheBitsOfThreads) {
  for (int ranks : {2, 3, 4, 5})
    for (int64_t count : {100, 9001}) {
      std::vector<std::vector<float>> byThreads(static_cast<size_t>(ranks)),
          bySockets(byThreads);
      auto sum = [&](cleave_communicator *c, std::vector<float> &out) {
        std::vector<float> in(static_cast<size_t>(count));
        out.resize(in.size());
        for (size_t i = 0; i < in.size(); ++i)
          in[i] = std::ldexp(std::sin(static_cast<float>(i) + 1.7f * c->rank),
                             static_cast<int>((i + 5 * c->rank) % 23));
        cleave_collective what =
            collectiveOf(CLEAVE_ALL_REDUCE, in.data(), out.data(), count);
        cleave_request *request = c->api->prepare(groupOfAll(c), &what, 1);
        ASSERT_TRUE(request);
        ASSERT_EQ(c->api->start(request), 0);
        ASSERT_EQ(c->api->wait(request), 0);
        c->api->release(request);
      };
      runRanks(ranks, [&](cleave_communicator *c) {
        sum(c, bySockets[static_cast<size_t>(c->rank)]);
      });
      runtime::ThreadWorld world(ranks);
      std::vector<std::thread> threads;
      for (int rank = 0; rank < ranks; ++rank)
        threads.emplace_back([&, rank] {
          cleave_communicator *c = world.connect(rank, test::singleThread());
          sum(c, byThreads[static_cast<size_t>(rank)]);
          c->api->close(c);
        });
      for (std::thread &thread : threads)
        thread.join();
      EXPECT_EQ(bySockets, byThreads);
      EXPECT_EQ(bySockets[0], bySockets[1]);
    }
}

/// More than connections hold: the receiver starts when the sender has.
TEST(SocketWorldTest, StartDoesNotWait) {
  constexpr int64_t count = 8 << 20;
  std::atomic<bool> started{false};
  runRanks(2, [&](cleave_communicator *c) {
    std::vector<float> in(count, 3.0f), out(count);
    cleave_collective what =
        collectiveOf(CLEAVE_SEND, in.data(), out.data(), count);
    cleave_request *request = c->api->prepare(groupOfAll(c), &what, 1);
    ASSERT_TRUE(request);
    while (c->rank == 1 && !started)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_EQ(c->api->start(request), 0);
    started = true;
    ASSERT_EQ(c->api->wait(request), 0);
    if (c->rank == 1)
      EXPECT_EQ(out, in);
    c->api->release(request);
  });
}

/// Several communicators of the same processes, as several sessions have.
TEST(SocketWorldTest, CommunicatorsAreApart) {
  int port = freePort();
  cleave_team team = test::singleThread();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      std::string error;
      auto world = SocketWorld::connect(launchOf(rank, 2, port), error);
      ASSERT_TRUE(world) << error;
      cleave_communicator *one = world->open(team, error),
                          *two = world->open(team, error);
      EXPECT_EQ(test::runTrial(one, 3), "");
      EXPECT_EQ(test::runTrial(two, 4), "");
      one->api->close(one);
      EXPECT_EQ(test::runTrial(two, 5), "");
      two->api->close(two);
    });
  for (std::thread &thread : threads)
    thread.join();
}

/// What `who` does alone ends the others with `message`.
void expectFailure(const std::function<void(cleave_communicator *)> &alone,
                   const std::string &message) {
  runRanks(3, [&](cleave_communicator *c) {
    float in = 1, out = 0;
    cleave_collective what = collectiveOf(CLEAVE_ALL_REDUCE, &in, &out, 1);
    cleave_group *group = groupOfAll(c);
    cleave_request *request = c->api->prepare(group, &what, 1);
    // One that fails soon may do so while others are still on their way out.
    bool met = c->api->barrier(group) == 0;
    if (c->rank == 1) {
      EXPECT_TRUE(met);
      return alone(c);
    }
    if (met && c->api->start(request) == 0)
      EXPECT_NE(c->api->wait(request), 0);
    EXPECT_EQ(c->api->error(c), message);
    c->api->release(request);
  });
}

TEST(SocketWorldTest, WhatOneCannotDoEndsAll) {
  expectFailure([](cleave_communicator *c) { c->api->fail(c, "out of paper"); },
                "rank 1: out of paper");
  expectFailure([](cleave_communicator *) {},
                "rank 1: has closed the program while others wait for it");
}

/// Rank 2 prepares another collective than the others.
void expectDifference(int port) {
  auto body = [&](cleave_communicator *c) {
    float in[8] = {}, out[8] = {};
    cleave_collective what =
        collectiveOf(CLEAVE_ALL_REDUCE, in, out, c->rank == 2 ? 5 : 4);
    cleave_group *group = groupOfAll(c);
    ASSERT_TRUE(c->api->prepare(group, &what, 1));
    EXPECT_NE(c->api->barrier(group), 0);
    EXPECT_STREQ(c->api->error(c),
                 "rank 2: prepares another collective than rank 0: an "
                 "all-reduce of 5 elements of f32, not an all-reduce of 4 "
                 "elements of f32");
  };
  runRanks(3, body, port);
}

TEST(SocketWorldTest, DifferentRequestsAreFound) {
  expectDifference(freePort());
}

/// What a failed comparison has asked for arrives when it has returned, if the
/// machine is busy: a sanitizer sees whether it is written to freed memory.
TEST(SocketWorldTest, MessagesArriveAfterAFailure) {
  std::vector<std::thread> worlds;
  for (int port : freePorts(24))
    worlds.emplace_back(expectDifference, port);
  for (std::thread &world : worlds)
    world.join();
}

TEST(SocketWorldTest, MissingRanks) {
  int port = freePort();
  auto soon = [&](int rank, int size) {
    SocketLaunch launch = launchOf(rank, size, port);
    launch.patienceSeconds = 1;
    return launch;
  };
  auto errors = failuresOf({soon(0, 4), soon(2, 4)});
  EXPECT_TRUE(errors[0].starts_with("ranks 1, 3 (of 4) did not come to "))
      << errors[0];
  EXPECT_EQ(errors[1], errors[0]);

  errors = failuresOf({soon(1, 2)});
  EXPECT_TRUE(errors[0].starts_with("rank 0 was not found at localhost:"))
      << errors[0];
  EXPECT_NE(errors[0].find("within 1 s: nothing listens at"),
            std::string::npos);
}

/// The first rank takes the next port; alone it says who has it.
TEST(SocketWorldTest, AnotherProgramHasThePort) {
  int port = 0;
  int other = openPort(port, /*listens=*/true);
  auto errors = failuresOf({launchOf(0, 2, port)});
  EXPECT_NE(errors[0].find("Address already in use"), std::string::npos);
  std::thread speaks([&] {
    for (int i = 0; i < 2; ++i) {
      int one = ::accept(other, nullptr, nullptr);
      (void)!::write(one, "HTTP/1.1 400 Bad Request\r\n\r\n", 28);
      ::close(one);
    }
  });
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      SocketLaunch launch = launchOf(rank, 2, port);
      launch.ports = 4;
      std::string error;
      EXPECT_TRUE(SocketWorld::connect(launch, error)) << error;
    });
  for (std::thread &thread : threads)
    thread.join();
  int last = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  for (int i = 0; i < 2; ++i) {
    (void)!::connect(last, reinterpret_cast<sockaddr *>(&address),
                     sizeof(address));
    ::close(last);
    last = ::socket(AF_INET, SOCK_STREAM, 0);
  }
  speaks.join();
  ::close(last);
  ::close(other);
}

/// Three ranks of which the second does something else; `meanwhile` is what it
/// does. What the others are told, in which time.
std::vector<std::pair<std::string, double>>
waitForSecond(int patience,
              const std::function<void(cleave_communicator *)> &meanwhile) {
  int port = freePort();
  cleave_team team = test::singleThread();
  std::vector<std::pair<std::string, double>> found(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      std::string error;
      SocketLaunch launch = launchOf(rank, 3, port);
      launch.patienceSeconds = patience;
      auto world = SocketWorld::connect(launch, error);
      ASSERT_TRUE(world) << error;
      cleave_communicator *c = world->open(team, error);
      ASSERT_TRUE(c) << error;
      auto begin = std::chrono::steady_clock::now();
      if (rank == 1)
        meanwhile(c);
      float in = 1, out = 0;
      cleave_collective what = collectiveOf(CLEAVE_ALL_REDUCE, &in, &out, 1);
      // No group is made after a failure.
      cleave_group *group = groupOfAll(c);
      cleave_request *request =
          group ? c->api->prepare(group, &what, 1) : nullptr;
      if (request && c->api->start(request) == 0)
        (void)c->api->wait(request);
      auto &[text, time] = found[static_cast<size_t>(rank)];
      text = c->api->error(c);
      time = std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                           begin)
                 .count();
      c->api->close(c);
    });
  for (std::thread &thread : threads)
    thread.join();
  return found;
}

/// It notices the failure, as a loop does that steps now and then.
void loopUntilFailure(cleave_communicator *c) {
  for (int i = 0; i < 200 && !*c->api->error(c); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

TEST(SocketWorldTest, PatienceEnds) {
  auto found = waitForSecond(2, loopUntilFailure);
  for (const auto &[text, time] : found) {
    EXPECT_EQ(text, "rank 1: does not come to what others wait for: it is busy "
                    "with something else, for 2 s; --patience (of Python: "
                    "patience; else CLEAVE_PATIENCE) sets another time");
    EXPECT_GT(time, 1.9);
    EXPECT_LT(time, 4);
  }
}

TEST(SocketWorldTest, OneThatWritesHasLonger) {
  auto found = waitForSecond(1, [](cleave_communicator *c) {
    c->api->busy(c, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    c->api->busy(c, 0);
  });
  for (const auto &[text, time] : found)
    EXPECT_EQ(text, "");
}

/// A failure that a rank does not notice is known to who asks for it, and its
/// process would end only later.
TEST(SocketWorldTest, FailuresThatAreNotNoticed) {
  bool unnoticed = false;
  auto found = waitForSecond(1, [&](cleave_communicator *c) {
    for (int i = 0; i < 100 && !unnoticed; ++i) {
      unnoticed = c->api->unnoticed(c, 10) != 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    std::thread other([&] { EXPECT_STRNE(c->api->error(c), ""); });
    other.join();
    EXPECT_NE(c->api->unnoticed(c, 10), 0);
  });
  EXPECT_TRUE(unnoticed);
}

} // namespace
