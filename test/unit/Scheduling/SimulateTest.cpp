//===- SimulateTest.cpp - How long schedules take -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Schedules.h"
#include <limits>

using namespace cleave::scheduling;

namespace {

TEST(Simulate, TimesOfEachAction) {
  Made made("1f1b", 2, 1, 2);
  Simulation sim = made.simulate(2, 1, 3);
  auto text = [&](int64_t d) {
    std::string text;
    for (const Span &span : sim.spans[d])
      text += std::to_string(int(span.start)) + '-' +
              std::to_string(int(span.end)) + ' ';
    return text;
  };
  EXPECT_EQ(made.schedule.str(), "F0 F1 B0 B1 U | 1F0 1B0 1F1 1B1 1U");
  EXPECT_EQ(text(0), "0-2 2-4 8-12 14-18 18-18 ");
  EXPECT_EQ(text(1), "2-4 4-8 8-10 10-14 14-14 ");
  EXPECT_EQ(sim.makespan, 18);
  EXPECT_EQ(sim.idle, (std::vector<double>{6, 0}));
  EXPECT_EQ(sim.maxIdle, 6);
  EXPECT_EQ(sim.period, 18);
  EXPECT_EQ(sim.peakSaved, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(sim.peakInFlight, (std::vector<int64_t>{2, 1}));
}

TEST(Simulate, TransfersTakeTime) {
  Made made("1f1b", 2, 1, 1);
  Costs costs = Costs::uniform(made.parts, {{"F", 1}, {"I", 1}, {"W", 1}});
  costs.transfer.assign(made.parts.size(), 0.5);
  std::string error;
  std::optional<Simulation> sim =
      simulate(made.schedule, made.parts, 1, made.map, costs, error);
  ASSERT_TRUE(sim) << error;
  // Down and up, once each.
  EXPECT_EQ(sim->makespan, 2 * 0.5 + 2 * 3);
  // Within a position they take none.
  Made alone("zb-v", 1, 2, 1);
  costs = Costs::uniform(alone.parts, {{"F", 1}, {"I", 1}, {"W", 1}});
  costs.transfer.assign(alone.parts.size(), 0.5);
  sim = simulate(alone.schedule, alone.parts, 1, alone.map, costs, error);
  ASSERT_TRUE(sim) << error;
  EXPECT_EQ(sim->makespan, 6);
}

TEST(Simulate, WholeBackwardMayCostLess) {
  Made made("1f1b", 1, 1, 2);
  Costs costs = Costs::uniform(made.parts, {{"F", 1}, {"I", 2}, {"W", 2}});
  EXPECT_EQ(costs.ofPart(made.parts, 3), 4);
  costs.run[3] = 3;
  std::string error;
  EXPECT_EQ(
      simulate(made.schedule, made.parts, 2, made.map, costs, error)->makespan,
      8);
}

TEST(Simulate, Errors) {
  Made made("1f1b", 2, 1, 2);
  Costs costs;
  std::string error;
  auto fails = [&] {
    return !simulate(made.schedule, made.parts, 2, made.map, costs, error);
  };
  EXPECT_TRUE(fails());
  EXPECT_EQ(error, "expected one cost for each of the 10 parts");
  costs = Costs::uniform(made.parts, {{"F", -1}});
  EXPECT_TRUE(fails());
  EXPECT_EQ(error, "part F of stage 0: a cost must be finite and not negative");
  costs = Costs::uniform(made.parts, {{"F", 1}});
  costs.transfer.assign(made.parts.size(),
                        std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(fails());
  made.schedule.devices[0].pop_back();
  costs.transfer.clear();
  EXPECT_TRUE(fails());
  EXPECT_EQ(error, "U never runs");
}

} // namespace
