//===- SearchTest.cpp - Schedules for given costs -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/Search/Search.h"
#include "AllOrders.h"
#include "Schedules.h"
#include "cleave/Scheduling/InsertTransfers.h"
#include "llvm/ADT/STLExtras.h"
#include <ctime>
#include <limits>
#include <random>

using namespace cleave::scheduling;

namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

/// Costs from 1 to 10 for F, I and W of each stage.
Costs randomCosts(llvm::ArrayRef<PartInfo> parts, std::mt19937 &random) {
  Costs costs;
  for (const PartInfo &part : parts)
    costs.run.push_back(!part.fuses.empty() ? -1
                        : part.name == "U"  ? 0
                                            : 1 + int(random() % 10));
  return costs;
}

/// The makespan of the best generated schedule that fits.
double bestGenerated(llvm::ArrayRef<PartInfo> parts, int64_t p, int64_t v,
                     int64_t m, const Costs &costs, int64_t limit) {
  double best = kNone;
  for (const Generator &generator : generators()) {
    std::string error;
    if (generator.asynchronous || !generator.takesChunks(v))
      continue;
    std::optional<Schedule> schedule =
        generateSchedule(generator.name, {p, v, m}, error);
    if (!schedule)
      continue;
    VerifyOptions options;
    options.savedLimit = limit;
    if (std::optional<Simulation> simulation = simulate(
            *schedule, parts, m, {generator.map, p}, costs, error, options))
      best = std::min(best, simulation->makespan);
  }
  return best;
}

/// gpipe and 1f1b are the best with whole backwards and what they save; zb-h1
/// and zb-h2, with F = I = W, with split ones.
TEST(Search, OneChunkSchedulesAgainstAllOrders) {
  for (int p = 1; p <= 3; ++p)
    for (int m = 1; m <= 4; ++m)
      for (std::array<int, 3> cost :
           {std::array{1, 1, 1}, {2, 1, 1}, {1, 2, 2}, {3, 1, 1}}) {
        std::vector<std::array<int, 3>> all(p, cost);
        auto made = [&](const char *name) -> int {
          return Made(name, p, 1, m)
              .simulate(cost[0], cost[1], cost[2])
              .makespan;
        };
        int whole = AllOrders(m, all, m, false).least(1 << 20);
        EXPECT_EQ(made("gpipe"), whole);
        EXPECT_EQ(made("1f1b"), whole);
        EXPECT_EQ(AllOrders(m, all, p, false).least(1 << 20), whole);
        if (cost != std::array{1, 1, 1})
          continue;
        int h1 = made("zb-h1"), h2 = made("zb-h2");
        EXPECT_EQ(AllOrders(m, all, p, true).least(h1), h1);
        EXPECT_EQ(AllOrders(m, all, 2 * p - 1, true).least(h2), h2);
        EXPECT_EQ(AllOrders(m, all, 2 * p - 1, true).least(h2 + 1), h2);
      }
}

TEST(Search, OptimalWhereAllOrdersCanBeTried) {
  std::mt19937 random(2);
  int rounds = testAll() ? 300 : 40;
  for (int round = 0; round < rounds; ++round) {
    int p = 1 + random() % 3, m = 1 + random() % 4;
    int limit = 1 + random() % m;
    std::vector<PartInfo> parts = describePipeline(p);
    Costs costs = randomCosts(parts, random);
    std::vector<std::array<int, 3>> all(p);
    for (auto [k, part] : llvm::enumerate(parts))
      if (costs.run[k] > 0)
        all[part.stage][part.name == "F"   ? 0
                        : part.name == "I" ? 1
                                           : 2] = costs.run[k];
    SearchOptions options;
    options.savedLimit = limit;
    std::string error;
    std::optional<SearchResult> found =
        searchSchedule(parts, m, p, costs, options, error);
    ASSERT_TRUE(found) << error;
    EXPECT_TRUE(found->optimal) << "p=" << p << " m=" << m;
    // No order ends earlier, and one ends then.
    AllOrders orders(m, all, limit, true);
    EXPECT_EQ(orders.least(found->makespan), found->makespan);
    if (p < 3 || m < 4)
      EXPECT_EQ(orders.least(found->makespan + 1), found->makespan);
  }
}

TEST(Search, NeverWorseThanWhatIsGenerated) {
  std::mt19937 random(11);
  int rounds = testAll() ? 600 : 60, better = 0;
  for (int round = 0; round < rounds; ++round) {
    int64_t p = 2 + random() % 7, v = 1 + random() % 2;
    int64_t m = p * (1 + random() % 3);
    std::vector<PartInfo> parts = describePipeline(p * v);
    Costs costs = randomCosts(parts, random);
    int64_t limits[] = {p * v + v - 1, 3 * p * v / 2 + 1, 2 * p * v + 1, m * v};
    int64_t limit = limits[round % 4];
    double generated = bestGenerated(parts, p, v, m, costs, limit);
    SearchOptions options;
    options.savedLimit = limit;
    std::string error;
    std::optional<SearchResult> found =
        searchSchedule(parts, m, p, costs, options, error);
    if (!found) {
      EXPECT_EQ(generated, kNone) << error;
      continue;
    }
    EXPECT_LE(found->makespan, generated);
    better += found->makespan <= 0.97 * generated && generated < kNone;
    // What it says is so.
    VerifyOptions verify;
    verify.savedLimit = limit;
    EXPECT_EQ(verifySchedule(found->schedule, parts, m, found->map, verify)
                  .value_or("valid"),
              "valid");
    std::optional<Schedule> full =
        insertTransfers(found->schedule, parts, m, found->map, error);
    ASSERT_TRUE(full) << error;
    EXPECT_EQ(
        verifySchedule(*full, parts, m, found->map, verify).value_or("valid"),
        "valid");
  }
  EXPECT_GE(better, rounds * 3 / 10);
  RecordProperty("better", better);
}

TEST(Search, LargePipelinesTakeLessThanTwoSeconds) {
  std::mt19937 random(3);
  for (int64_t v : {1, 2}) {
    std::vector<PartInfo> parts = describePipeline(16 * v);
    Costs costs = randomCosts(parts, random);
    SearchOptions options;
    options.savedLimit = 32 * v;
    std::string error;
    std::clock_t start = std::clock();
    std::optional<SearchResult> found =
        searchSchedule(parts, 64, 16, costs, options, error);
    double seconds = double(std::clock() - start) / CLOCKS_PER_SEC;
    ASSERT_TRUE(found) << error;
    EXPECT_LT(seconds, timeLimit(2));
    EXPECT_LE(found->makespan, bestGenerated(parts, 16, v, 64, costs, 32 * v));
  }
}

TEST(Search, SameForTheSameInput) {
  std::mt19937 random(4);
  std::vector<PartInfo> parts = describePipeline(8);
  Costs costs = randomCosts(parts, random);
  std::string error;
  EXPECT_EQ(searchSchedule(parts, 8, 4, costs, {}, error)->schedule,
            searchSchedule(parts, 8, 4, costs, {}, error)->schedule);
}

/// Parts besides those that it orders, values that skip stages, transfers that
/// take time, whole backwards.
TEST(Search, OtherPipelines) {
  PipelineOptions pipeline;
  pipeline.skips = {{0, 2}};
  for (bool split : {false, true}) {
    pipeline.split = split;
    std::vector<PartInfo> parts = describePipeline(3, pipeline);
    unsigned prologue = parts.size();
    parts.push_back({"P", false, 0, {}});
    for (PartInfo &part : parts)
      if (part.name == "F" && part.stage == 0)
        part.uses.push_back({prologue, false});
    Costs costs =
        Costs::uniform(parts, {{"F", 2}, {"I", 3}, {"W", 1}, {"P", 1}});
    for (auto [k, part] : llvm::enumerate(parts))
      if (part.name == "B" && part.fuses.empty())
        costs.run[k] = 4;
    costs.transfer.assign(parts.size(), 1);
    std::string error;
    std::optional<SearchResult> found =
        searchSchedule(parts, 6, 3, costs, {}, error);
    ASSERT_TRUE(found) << error;
    EXPECT_FALSE(verifySchedule(found->schedule, parts, 6, found->map));
    EXPECT_EQ(found->schedule.devices[0][0].str(), "P0");
    EXPECT_EQ(found->schedule.devices[0][5].str(), "P5");
    EXPECT_EQ(found->schedule.devices[2].back().str(), "2U");
  }
}

TEST(Search, Errors) {
  std::vector<PartInfo> parts = describePipeline(4);
  Costs costs = Costs::uniform(parts, {{"F", 1}, {"I", 1}, {"W", 1}});
  std::string error;
  auto fails = [&](int64_t devices, const SearchOptions &options = {}) {
    return !searchSchedule(parts, 4, devices, costs, options, error);
  };
  SearchOptions options;
  options.savedLimit = 1;
  EXPECT_TRUE(fails(2, options));
  EXPECT_EQ(error, "no order was found that keeps the limit; raise the limit, "
                   "or write an order by hand");
  EXPECT_FALSE(fails(4, options));
  EXPECT_TRUE(fails(3));
  EXPECT_EQ(error,
            "4 stages at 3 pipeline positions: the number of stages must be "
            "divisible by the number of positions; cut the model accordingly");
  options.map = StageMap::Kind::Bidirectional;
  EXPECT_TRUE(fails(4, options));
  EXPECT_TRUE(fails(0));
  parts[0].name = "A";
  EXPECT_TRUE(fails(4));
  EXPECT_EQ(error.substr(0, 16), "stage 0 has no F");
  costs.run.pop_back();
  EXPECT_TRUE(fails(4));
}

} // namespace
