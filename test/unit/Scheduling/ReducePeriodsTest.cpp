//===- ReducePeriodsTest.cpp - Tests of schedules of fewer periods --------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/ReducePeriods.h"
#include "Schedules.h"
#include "gtest/gtest.h"

using namespace cleave::scheduling;

namespace {
bool always(const Action &) { return true; }

/// Each list of the shorter schedule has actions of the whole one, in order.
void expectPartOf(const ReducedSchedule &shorter, const Schedule &whole) {
  ASSERT_EQ(shorter.schedule.devices.size(), whole.devices.size());
  for (size_t d = 0; d < whole.devices.size(); ++d) {
    const std::vector<Action> &own = shorter.schedule.devices[d];
    ASSERT_EQ(own.size(), shorter.places[d].size());
    size_t at = 0;
    for (size_t i = 0; i < own.size(); ++i, ++at) {
      Action action = own[i];
      if (action.microBatch >= 0)
        action.microBatch += shorter.places[d][i].later;
      while (at < whole.devices[d].size() && !(whole.devices[d][at] == action))
        ++at;
      ASSERT_LT(at, whole.devices[d].size()) << action.str();
    }
  }
}
} // namespace

/// A shorter form of each regular schedule is one of fewer micro-batches, which
/// the verifier accepts.
TEST(Shorten, AllGenerators) {
  std::set<std::string> shortened;
  for (const Generator &generator : generators()) {
    if (generator.asynchronous)
      continue;
    for (int64_t p : {1, 2, 4, 8})
      for (int64_t m : {96, 200}) {
        std::string error;
        int64_t chunks = generator.chunks ? generator.chunks : 2;
        auto schedule = generateSchedule(generator.name, {p, chunks, m}, error);
        if (!schedule)
          continue;
        ReducedSchedule shorter = reducePeriods(*schedule, m, always);
        expectPartOf(shorter, *schedule);
        if (shorter.removed == 0) {
          EXPECT_EQ(shorter.schedule, *schedule);
          continue;
        }
        shortened.insert(generator.name.str());
        EXPECT_EQ(shorter.removed % 12, 0);
        Made whole(generator.name, p, chunks, m);
        whole.microBatches = m - shorter.removed;
        whole.schedule = shorter.schedule;
        EXPECT_EQ(whole.verify(), std::nullopt)
            << generator.name.str() << " p " << p << " m " << m;
      }
  }
  for (const char *name : {"1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v"})
    EXPECT_TRUE(shortened.count(name)) << name;
  // All of its micro-batches are under way at once.
  EXPECT_FALSE(shortened.count("gpipe"));
}

/// What comes once, and what only the last micro-batch has, stays at its end.
TEST(Shorten, LastOnes) {
  std::string error;
  std::optional<Schedule> schedule =
      Schedule::parse("{100+1: F0 B0} B99>1 U", error);
  ASSERT_TRUE(schedule) << error;
  ReducedSchedule shorter = reducePeriods(*schedule, 100, always);
  EXPECT_EQ(shorter.removed, 84);
  EXPECT_EQ(shorter.schedule.compact(), "{16+1: F0 B0} B15>1 U");
  EXPECT_EQ(shorter.places[0].back().later, 0);
  EXPECT_EQ(shorter.places[0].rbegin()[1].later, 84);
}

/// A list that is irregular anywhere stays as it is.
TEST(Shorten, IrregularStays) {
  std::string error;
  // W of micro-batch 0 comes at the end.
  std::optional<Schedule> schedule =
      Schedule::parse("F0 I0 {99+1: F1 I1 W1} W0 U", error);
  ASSERT_TRUE(schedule) << error;
  EXPECT_EQ(reducePeriods(*schedule, 100, always).removed, 0);
  schedule = Schedule::parse("{100-1: F99 B99} U", error);
  ASSERT_TRUE(schedule) << error;
  EXPECT_EQ(reducePeriods(*schedule, 100, always).removed, 0);
}
