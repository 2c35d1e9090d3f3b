//===- InsertTransfersTest.cpp - Sends and receives are placed ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/InsertTransfers.h"
#include "Schedules.h"

using namespace cleave::scheduling;

namespace {

Schedule withoutTransfers(Schedule schedule) {
  for (std::vector<Action> &actions : schedule.devices)
    std::erase_if(actions, [](const Action &action) {
      return action.kind != Action::Kind::Run;
    });
  return schedule;
}

std::optional<Schedule> insert(const Made &made, std::string &error) {
  return insertTransfers(made.schedule, made.parts, made.microBatches, made.map,
                         error);
}

TEST(Transfers, OfTwoDevices) {
  Made made("1f1b", 2, 1, 2);
  std::string error;
  std::optional<Schedule> full = insert(made, error);
  ASSERT_TRUE(full) << error;
  EXPECT_EQ(full->str(), "F0 F0>1 F1 F1>1 0<1B0 B0 0<1B1 B1 U | "
                         "1<F0 1F0 1<F1 1B0 1B0>0 1F1 1B1 1B1>0 1U");
}

/// What stands to reason does not run: each send behind its run and each
/// receive before its reader.
TEST(Transfers, TheObviousPlacesDeadlock) {
  Made made("1f1b", 4, 1, 8);
  Schedule naive;
  naive.devices.clear();
  for (int64_t r = 0; r < 4; ++r) {
    std::vector<Action> &actions = naive.devices.emplace_back();
    for (const Action &action : made.schedule.devices[r]) {
      int64_t from = action.part == "F" ? r - 1 : r + 1;
      int64_t to = action.part == "F" ? r + 1 : r - 1;
      bool moves = action.part != "U";
      if (moves && from >= 0 && from < 4)
        actions.push_back(
            Action{action.part, action.microBatch, from}.receive(r));
      actions.push_back(action);
      if (moves && to >= 0 && to < 4)
        actions.push_back(action.send(to));
    }
  }
  std::string why =
      verifySchedule(naive, made.parts, 8, made.map).value_or("valid");
  EXPECT_NE(why.find("different orders"), std::string::npos) << why;
}

TEST(Transfers, OfAllGeneratedSchedules) {
  for (const Generator &generator : generators())
    for (int64_t v : chunksOf(generator))
      for (int64_t p : {1, 2, 3, 4, 7, 8, 16})
        for (int64_t m : {2 * p, 3 * p}) {
          Made made(generator.name, p, v, m);
          std::string error;
          std::optional<Schedule> full = insert(made, error);
          ASSERT_TRUE(full) << error;
          EXPECT_EQ(withoutTransfers(*full), made.schedule);
          EXPECT_EQ(
              verifySchedule(*full, made.parts, m, made.map).value_or("valid"),
              "valid")
              << generator.name.str() << " p=" << p << " m=" << m;
          EXPECT_EQ(parseSchedule(full->compact("\n")), *full);
          // Where they cost nothing, they cost nothing.
          Costs costs =
              Costs::uniform(made.parts, {{"F", 1}, {"I", 1}, {"W", 1}});
          std::optional<Simulation> with =
              simulate(*full, made.parts, m, made.map, costs, error);
          ASSERT_TRUE(with) << error;
          EXPECT_EQ(with->makespan, made.simulate(1, 1, 1).makespan);
          // There is one for each result that leaves its position.
          size_t transfers = 0, crossing = 0;
          for (const std::vector<Action> &actions : full->devices)
            for (const Action &action : actions)
              transfers += action.kind == Action::Kind::Send;
          for (int64_t s = 0; s + 1 < p * v; ++s)
            crossing += made.map.device(s) != made.map.device(s + 1);
          EXPECT_EQ(transfers, 2 * m * crossing);
        }
}

TEST(Transfers, SkipStages) {
  PipelineOptions options;
  options.skips = {{0, 2}, {0, 3}, {1, 3}};
  for (const char *name : {"gpipe", "1f1b", "zb-h1", "zb-h2"}) {
    Made made(name, 4, 1, 8);
    made.parts = describePipeline(4, options);
    std::string error;
    std::optional<Schedule> full = insert(made, error);
    ASSERT_TRUE(full) << error;
    EXPECT_FALSE(verifySchedule(*full, made.parts, 8, made.map));
    EXPECT_NE(full->str().find("F0>3"), std::string::npos);
    EXPECT_NE(full->str().find("0<2"), std::string::npos);
  }
  // Two stages of a position that read the same value receive it once.
  Made made("interleaved", 2, 2, 4);
  options.skips = {{0, 3}};
  made.parts = describePipeline(4, options);
  std::string error;
  std::optional<Schedule> full = insert(made, error);
  ASSERT_TRUE(full) << error;
  EXPECT_NE(full->str().find(" F0>1"), std::string::npos);
  EXPECT_EQ(full->str().find(" F0>3"), std::string::npos);
}

TEST(Transfers, BothWaysAtOnce) {
  Schedule schedule = parseSchedule(
      "F0 1F1 1B1 B0 F2 1F3 1B3 B2 U 1U | F1 1F0 1B0 B1 F3 1F2 1B2 B3 U 1U");
  StageMap map{StageMap::Kind::Bidirectional, 2};
  std::vector<PartInfo> parts = describePipeline(2);
  std::string error;
  std::optional<Schedule> full =
      insertTransfers(schedule, parts, 4, map, error);
  ASSERT_TRUE(full) << error;
  EXPECT_FALSE(verifySchedule(*full, parts, 4, map));
}

TEST(Transfers, Errors) {
  Made made("1f1b", 2, 1, 2);
  std::string error;
  made.schedule = *insert(made, error);
  EXPECT_FALSE(insert(made, error));
  EXPECT_EQ(error, "the schedule already has transfers; leave all of them out, "
                   "or write all of them");
  made.schedule.devices[0].clear();
  EXPECT_FALSE(insert(made, error));
}

/// A forward runs while another one's results are on their way.
TEST(Transfers, Overlap) {
  Made made("gpipe", 2, 1, 4);
  std::string error;
  std::optional<Schedule> full = insert(made, error);
  ASSERT_TRUE(full) << error;
  Costs costs = Costs::uniform(made.parts, {{"F", 2}, {"I", 2}, {"W", 2}});
  costs.transfer.assign(made.parts.size(), 2);
  std::optional<Simulation> sim =
      simulate(*full, made.parts, 4, made.map, costs, error);
  ASSERT_TRUE(sim) << error;
  // Down 2 and on the way 2; 4 forwards and backwards; on the way 2 and up 4.
  EXPECT_EQ(sim->makespan, 2 + 2 + 4 * (2 + 4) + 2 + 4);
}

} // namespace
