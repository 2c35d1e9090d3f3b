//===- RecomputeKnapsackTest.cpp - An option for each block ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Planning/ChooseRecompute.h"
#include "gtest/gtest.h"
#include <chrono>
#include <cmath>
#include <random>

using namespace cleave;

using Blocks = std::vector<std::vector<RecomputeOption>>;

/// The bytes and seconds of a choice.
static RecomputeOption sum(const Blocks &blocks,
                           const std::vector<unsigned> &chosen) {
  RecomputeOption all;
  for (size_t i = 0; i < blocks.size(); ++i) {
    all.bytes += blocks[i][chosen[i]].bytes;
    all.seconds += blocks[i][chosen[i]].seconds;
  }
  return all;
}

/// The least seconds of all choices within `budget`; infinity if there are
/// none.
static double exhaustive(const Blocks &blocks, double budget, size_t at = 0) {
  if (budget < 0)
    return INFINITY;
  if (at == blocks.size())
    return 0;
  double best = INFINITY;
  for (const RecomputeOption &option : blocks[at])
    best =
        std::min(best, option.seconds +
                           exhaustive(blocks, budget - option.bytes, at + 1));
  return best;
}

TEST(RecomputeKnapsack, EqualsTheExhaustiveSearch) {
  std::mt19937 random(1);
  auto draw = [&](double most) {
    return std::uniform_real_distribution<double>(0, most)(random);
  };
  for (int trial = 0; trial < 200; ++trial) {
    Blocks blocks(1 + random() % 7);
    double least = 0, most = 0;
    for (auto &options : blocks) {
      double low = INFINITY, high = 0;
      for (size_t i = 0, n = 1 + random() % 4; i < n; ++i) {
        options.push_back({draw(1e9), draw(1)});
        low = std::min(low, options.back().bytes);
        high = std::max(high, options.back().bytes);
      }
      least += low;
      most += high;
    }
    for (int step = -1; step <= 10; ++step) {
      // A byte more, so that no sum is equal to it but for rounding.
      double budget = least + (most - least) * step / 10 + 1;
      auto chosen = chooseOptions(blocks, budget);
      double best = exhaustive(blocks, budget);
      ASSERT_EQ(chosen.has_value(), std::isfinite(best));
      if (!chosen)
        continue;
      RecomputeOption found = sum(blocks, *chosen);
      EXPECT_LE(found.bytes, budget * (1 + 1e-12));
      EXPECT_LE(found.seconds, best * 1.05 + 1e-12);
    }
  }
}

/// Layers that differ, so that fronts are as long as they may become.
TEST(RecomputeKnapsack, SolvesManyLayersFast) {
  std::mt19937 random(2);
  Blocks blocks(128);
  double most = 0;
  for (auto &options : blocks) {
    double bytes = 1e9 + random() % 1000000;
    most += bytes;
    for (double share : {1.0, 0.6, 0.5, 0.3, 0.2, 0.1})
      options.push_back(
          {bytes * share, (1 - share) * (1 - share) + 1e-4 * (random() % 100)});
  }
  auto start = std::chrono::steady_clock::now();
  for (double share : {0.1, 0.3, 0.5, 0.9}) {
    auto chosen = chooseOptions(blocks, most * share + 1);
    ASSERT_TRUE(chosen);
    EXPECT_LE(sum(blocks, *chosen).bytes, most * share + 1);
  }
  double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  EXPECT_LE(seconds, 4 * 5);
}
