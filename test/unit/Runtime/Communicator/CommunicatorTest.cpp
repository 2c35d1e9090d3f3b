//===- CommunicatorTest.cpp - Ranks that are threads ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CommunicatorTrial.h"
#include "cleave/Runtime/Communicator/ThreadWorld.h"
#include "gtest/gtest.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

using namespace cleave;
using runtime::ThreadWorld;

namespace {

/// A team of threads that come and go.
void runOnThree(void *, void (*body)(void *, int32_t, int32_t), void *data) {
  std::thread second(body, data, 1, 3), third(body, data, 2, 3);
  body(data, 0, 3);
  second.join();
  third.join();
}

/// Runs `body` as each of `ranks` ranks.
void runRanks(int ranks, const cleave_team &team,
              const std::function<void(cleave_communicator *)> &body) {
  ThreadWorld world(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      cleave_communicator *c = world.connect(rank, team);
      body(c);
      c->api->close(c);
    });
  for (std::thread &thread : threads)
    thread.join();
}

std::vector<int32_t> everyone(const cleave_communicator *c) {
  std::vector<int32_t> ranks;
  for (int32_t i = 0; i < c->size; ++i)
    ranks.push_back(i);
  return ranks;
}

cleave_group *groupOfAll(cleave_communicator *c) {
  std::vector<int32_t> ranks = everyone(c);
  return c->api->group(c, ranks.data(), c->size);
}

/// A sum over `count` floats.
cleave_collective sumOf(const float *src, float *dst, int64_t count) {
  cleave_collective what{};
  what.kind = CLEAVE_ALL_REDUCE;
  what.reduction = CLEAVE_SUM;
  what.dtype = CLEAVE_F32;
  what.dims = 1;
  what.sizes[0] = count;
  what.src_strides[0] = what.dst_strides[0] = 1;
  what.src = src;
  what.dst = dst;
  return what;
}

TEST(CommunicatorTest, DrawnCollectives) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    int ranks = 1 + static_cast<int>(seed % 9);
    runRanks(ranks, test::singleThread(), [&](cleave_communicator *c) {
      EXPECT_EQ(test::runTrial(c, seed), "");
    });
  }
}

TEST(CommunicatorTest, LargeBlocksAreSplitAmongTheTeam) {
  cleave_team team{nullptr, 3, runOnThree};
  for (uint64_t seed = 0; seed < 6; ++seed)
    runRanks(2, team, [&](cleave_communicator *c) {
      EXPECT_EQ(test::runTrial(c, seed, 300000), "");
    });
}

TEST(CommunicatorTest, RowsToAll) {
  cleave_team three{nullptr, 3, runOnThree};
  for (uint64_t seed = 0; seed < 40; ++seed) {
    int ranks = 1 + static_cast<int>(seed % 8);
    runRanks(ranks, seed % 9 ? test::singleThread() : three,
             [&](cleave_communicator *c) {
               EXPECT_EQ(test::runRowTrial(c, seed), "");
             });
  }
}

TEST(CommunicatorTest, RowsOfWrongNumbersEndAll) {
  for (auto [fault, text] : test::kRowFaults)
    runRanks(3, test::singleThread(), [&](cleave_communicator *c) {
      EXPECT_EQ(test::runRowFault(c, fault), text) << fault;
    });
}

TEST(CommunicatorTest, MoreRanksThanCores) {
  runRanks(32, test::singleThread(), [&](cleave_communicator *c) {
    EXPECT_EQ(test::runTrial(c, 7, 50), "");
  });
}

/// The sum of 1, 2^24 and -2^24 is 0 or 1, as it is added up.
TEST(CommunicatorTest, SumsAreAddedInOrderOfTheMembers) {
  constexpr int64_t count = 5000;
  runRanks(3, test::singleThread(), [&](cleave_communicator *c) {
    const int32_t orders[2][3] = {{0, 1, 2}, {1, 2, 0}};
    const float given[] = {1.0f, 16777216.0f, -16777216.0f};
    const float sums[] = {0.0f, 1.0f};
    for (int i = 0; i < 2; ++i) {
      std::vector<float> src(count, given[c->rank]), dst(count, -1.0f);
      cleave_group *group = c->api->group(c, orders[i], 3);
      cleave_collective what = sumOf(src.data(), dst.data(), count);
      cleave_request *request = c->api->prepare(group, &what, 1);
      ASSERT_TRUE(request);
      ASSERT_EQ(c->api->start(request), 0);
      ASSERT_EQ(c->api->wait(request), 0);
      EXPECT_EQ(dst, std::vector<float>(count, sums[i]));
      c->api->release(request);
    }
  });
}

/// 256 + 1 + 1 is 258 in f32, and 256 where bf16 rounds each sum; f16 has
/// subnormal sums. Two floats of 8 bits are in each word.
TEST(CommunicatorTest, SumsOfNarrowFloatsAreRoundedOnce) {
  struct Case {
    int32_t dtype;
    uint16_t given[3], sum;
  };
  constexpr Case cases[] = {
      {CLEAVE_BF16, {0x4380, 0x3f80, 0x3f80}, 0x4381},
      {CLEAVE_F16, {0x6800, 0x3c00, 0x3c00}, 0x6801},
      {CLEAVE_F16, {0x0001, 0x0001, 0x0001}, 0x0003},
      {CLEAVE_BF16, {0x0001, 0x0001, 0x0001}, 0x0003},
      {CLEAVE_F8E4M3, {0x5858, 0x3838, 0x3838}, 0x5959},
      {CLEAVE_F8E4M3, {0x7e01, 0x7e01, 0x7e01}, 0x7e03},
      {CLEAVE_F8E5M2, {0x4848, 0x3c3c, 0x3c3c}, 0x4949},
      {CLEAVE_F8E5M2, {0x7b01, 0x7b01, 0x7b01}, 0x7c03},
  };
  constexpr int64_t count = 1500;
  runRanks(3, test::singleThread(), [&](cleave_communicator *c) {
    for (const Case &one : cases) {
      std::vector<uint16_t> src(count, one.given[c->rank]), dst(count, 7);
      bool pairs = one.dtype == CLEAVE_F8E4M3 || one.dtype == CLEAVE_F8E5M2;
      cleave_collective what =
          sumOf(nullptr, nullptr, pairs ? 2 * count : count);
      what.dtype = one.dtype;
      what.src = src.data();
      what.dst = dst.data();
      cleave_request *request = c->api->prepare(groupOfAll(c), &what, 1);
      ASSERT_TRUE(request);
      ASSERT_EQ(c->api->start(request), 0);
      ASSERT_EQ(c->api->wait(request), 0);
      EXPECT_EQ(dst, std::vector<uint16_t>(count, one.sum));
      c->api->release(request);
    }
  });
}

TEST(CommunicatorTest, WhoSendsWaitsForNobody) {
  // What is received is there although its sender has not waited, and does so
  // only when it has received in turn.
  runRanks(2, test::singleThread(), [&](cleave_communicator *c) {
    const cleave_communicator_api &api = *c->api;
    int32_t there[] = {0, 1}, back[] = {1, 0};
    float given = float(c->rank + 1), taken = 0;
    auto prepare = [&](cleave_group *group, bool sends) {
      cleave_collective what{};
      what.kind = CLEAVE_SEND;
      what.dtype = CLEAVE_F32;
      what.src = sends ? &given : nullptr;
      what.dst = sends ? nullptr : &taken;
      return api.prepare(group, &what, 1);
    };
    cleave_group *first = api.group(c, there, 2);
    cleave_group *second = api.group(c, back, 2);
    cleave_request *ping = prepare(first, c->rank == 0);
    cleave_request *pong = prepare(second, c->rank == 1);
    cleave_request *mine = c->rank == 0 ? ping : pong;
    cleave_request *other = c->rank == 0 ? pong : ping;
    for (int time = 0; time < 100; ++time) {
      given = float(10 * time + c->rank);
      EXPECT_EQ(api.start(mine), 0);
      EXPECT_EQ(api.start(other), 0);
      EXPECT_EQ(api.wait(other), 0);
      EXPECT_EQ(taken, float(10 * time + 1 - c->rank));
      EXPECT_EQ(api.wait(mine), 0);
    }
    api.release(ping);
    api.release(pong);
  });
}

TEST(CommunicatorTest, BarrierWaitsForAll) {
  std::atomic<int> before{0};
  runRanks(5, test::singleThread(), [&](cleave_communicator *c) {
    cleave_group *group = groupOfAll(c);
    for (int time = 1; time <= 20; ++time) {
      ++before;
      ASSERT_EQ(c->api->barrier(group), 0);
      EXPECT_GE(before.load(), 5 * time);
      ASSERT_EQ(c->api->barrier(group), 0);
    }
  });
}

//===----------------------------------------------------------------------===//
// Faults
//===----------------------------------------------------------------------===//

/// Runs `fault` as rank 2 of four, while the others wait for it in a sum; what
/// each of them is told, after how long.
void expectFault(const std::function<void(cleave_communicator *)> &fault,
                 const std::string &message) {
  auto begin = std::chrono::steady_clock::now();
  runRanks(4, test::singleThread(), [&](cleave_communicator *c) {
    float in = 1, out = 0;
    cleave_group *group = groupOfAll(c);
    if (c->rank == 2)
      return fault(c);
    cleave_collective what = sumOf(&in, &out, 1);
    cleave_request *request = c->api->prepare(group, &what, 1);
    ASSERT_TRUE(request);
    // The one that finds out may do so before it starts.
    EXPECT_TRUE(c->api->start(request) || c->api->wait(request));
    EXPECT_EQ(c->api->error(c), message);
    EXPECT_NE(c->api->barrier(group), 0);
    c->api->release(request);
  });
  std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(time.count(), 3.0);
}

TEST(CommunicatorTest, RankThatFailsEndsTheOthers) {
  expectFault(
      [](cleave_communicator *c) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        c->api->fail(c, "out of paper");
        c->api->fail(c, "only the first reason counts");
      },
      "rank 2: out of paper");
}

TEST(CommunicatorTest, RankThatLeavesEndsTheOthers) {
  expectFault([](cleave_communicator *) {},
              "rank 2: has ended while others wait for it");
}

TEST(CommunicatorTest, RanksMustAgree) {
  runRanks(2, test::singleThread(), [&](cleave_communicator *c) {
    float data[2] = {};
    cleave_group *group = groupOfAll(c);
    if (c->rank == 0) {
      cleave_collective what = sumOf(data, data, 1);
      cleave_request *request = c->api->prepare(group, &what, 1);
      ASSERT_TRUE(request);
      EXPECT_EQ(c->api->barrier(group), 0);
      EXPECT_NE(c->api->barrier(group), 0);
      c->api->release(request);
    } else {
      EXPECT_EQ(c->api->barrier(group), 0);
      cleave_collective what = sumOf(data, data, 2);
      EXPECT_FALSE(c->api->prepare(group, &what, 1));
    }
    EXPECT_STREQ(c->api->error(c),
                 "rank 1: asks for another collective than the other ranks: "
                 "an all-reduce of 2 elements of f32, not an all-reduce of 1 "
                 "elements of f32");
  });
}

TEST(CommunicatorTest, OneRankMayNameWhatIsNotUsed) {
  // Sources count for permutations alone.
  runRanks(2, test::singleThread(), [&](cleave_communicator *c) {
    float in = 1, out = 0;
    int32_t sources[] = {1, 0};
    cleave_group *group = groupOfAll(c);
    cleave_collective what = sumOf(&in, &out, 1);
    what.sources = c->rank == 0 ? sources : nullptr;
    cleave_request *request = c->api->prepare(group, &what, 1);
    ASSERT_TRUE(request);
    EXPECT_EQ(c->api->start(request), 0);
    EXPECT_EQ(c->api->wait(request), 0);
    EXPECT_EQ(out, 2);
    c->api->release(request);
  });
}

TEST(CommunicatorTest, SenselessRequestsAreRefused) {
  float data[8] = {};
  auto refused = [&](const std::function<void(cleave_collective &)> &change) {
    std::string error;
    runRanks(1, test::singleThread(), [&](cleave_communicator *c) {
      cleave_collective what = sumOf(data, data + 4, 4);
      change(what);
      EXPECT_FALSE(c->api->prepare(groupOfAll(c), &what, 1));
      error = c->api->error(c);
    });
    return error;
  };
  EXPECT_EQ(refused([](auto &w) { w.kind = 9; }),
            "rank 0: unknown kind of collective");
  EXPECT_EQ(refused([](auto &w) { w.dtype = CLEAVE_I8; }),
            "rank 0: this reduction does not support this element type");
  EXPECT_EQ(refused([](auto &w) { w.dtype = CLEAVE_I1; }),
            "rank 0: this reduction does not support this element type");
  EXPECT_EQ(refused([](auto &w) { w.sizes[0] = -1; }),
            "rank 0: sizes and strides must not be negative");
  EXPECT_EQ(refused([](auto &w) { w.src = nullptr; }),
            "rank 0: a block has no address");
  EXPECT_EQ(refused([](auto &w) {
              w.dst = const_cast<void *>(w.src);
              w.dst_strides[0] = 2;
            }),
            "rank 0: a reduction in place needs the same strides twice");
  EXPECT_EQ(refused([](auto &w) { w.kind = CLEAVE_PERMUTE; }),
            "rank 0: a permutation needs its sources");
  EXPECT_EQ(refused([](auto &w) { w.kind = CLEAVE_BROADCAST, w.root = 1; }),
            "rank 0: the root is not a member");
  EXPECT_EQ(refused([](auto &w) { w.kind = CLEAVE_SEND; }),
            "rank 0: a send has one sender and one receiver");
  EXPECT_EQ(refused([](auto &w) { w.kind = CLEAVE_REDUCE, w.root = 1; }),
            "rank 0: the root is not a member");
}

TEST(CommunicatorTest, BlocksOfOneCollectiveAreOfOneKind) {
  float data[8] = {};
  auto refused = [&](const std::function<void(cleave_collective &)> &change) {
    std::string error;
    runRanks(1, test::singleThread(), [&](cleave_communicator *c) {
      cleave_collective blocks[] = {sumOf(data, data + 2, 2),
                                    sumOf(data + 4, data + 6, 2)};
      change(blocks[1]);
      EXPECT_FALSE(c->api->prepare(groupOfAll(c), blocks, 2));
      error = c->api->error(c);
    });
    return error;
  };
  const char *differ =
      "rank 0: the blocks of a collective differ in more than their addresses";
  EXPECT_EQ(refused([](auto &w) { w.reduction = CLEAVE_MAX; }), differ);
  EXPECT_EQ(refused([](auto &w) { w.dtype = CLEAVE_I32; }), differ);
  EXPECT_EQ(refused([](auto &w) { w.kind = CLEAVE_ALL_GATHER; }), differ);
  EXPECT_EQ(refused([](auto &w) { w.src = nullptr; }),
            "rank 0: a block has no address");
}

TEST(CommunicatorTest, SenselessGroupsAreRefused) {
  auto refused = [&](std::vector<int32_t> ranks) {
    std::string error;
    runRanks(2, test::singleThread(), [&](cleave_communicator *c) {
      if (c->rank != 0)
        return;
      EXPECT_FALSE(
          c->api->group(c, ranks.data(), static_cast<int32_t>(ranks.size())));
      error = c->api->error(c);
    });
    return error;
  };
  EXPECT_EQ(refused({0, 0}),
            "rank 0: a group names a rank twice, or one that does not exist");
  EXPECT_EQ(refused({0, 2}),
            "rank 0: a group names a rank twice, or one that does not exist");
  EXPECT_EQ(refused({1}),
            "rank 0: a group does not contain the rank that creates it");
}

} // namespace
