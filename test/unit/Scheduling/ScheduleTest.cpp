//===- ScheduleTest.cpp - Schedules as data -------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/Search/Search.h"
#include "gtest/gtest.h"
#include <algorithm>
#include <random>

using namespace cleave::scheduling;

namespace {

/// P -> F, B; F -> B of the same micro-batch; B -> U.
std::vector<PartInfo> trainingParts() {
  return {{"P", false, 0, {}},
          {"F", false, 0, {{0, false}}},
          {"B", false, 0, {{0, false}, {1, true}}},
          {"U", true, 0, {{2, false}}}};
}

Schedule parse(llvm::StringRef text) {
  std::string error;
  std::optional<Schedule> schedule = Schedule::parse(text, error);
  EXPECT_TRUE(schedule) << error;
  return schedule ? *schedule : Schedule();
}

TEST(Schedule, TextRoundTrips) {
  Schedule schedule = parse("  P0 F0  2B11 U 3W2 ");
  EXPECT_EQ(schedule.str(), "P0 F0 2B11 U 3W2");
  EXPECT_EQ(schedule.actions()[2], (Action{"B", 11, 2}));
  EXPECT_EQ(schedule.actions()[3], (Action{"U", -1, 0}));
}

TEST(Schedule, TextErrors) {
  for (const char *text :
       {"F-1", "0", "F0B0", "99999999999999999999F0", "F0;"}) {
    std::string error;
    EXPECT_FALSE(Schedule::parse(text, error)) << text;
    EXPECT_NE(error.find(text), std::string::npos);
  }
}

TEST(Schedule, OneStage) {
  EXPECT_EQ(Schedule::singleStage(trainingParts(), 3).str(),
            "P0 P1 P2 F0 B0 F1 B1 F2 B2 U");
  EXPECT_EQ(Schedule::singleStage({{"F", false, 0, {}}}, 2).str(), "F0 F1");
}

TEST(Schedule, OneStageIsValid) {
  for (int64_t m = 1; m < 9; ++m)
    EXPECT_FALSE(
        Schedule::singleStage(trainingParts(), m).verify(trainingParts(), m));
}

TEST(Schedule, VerifyNamesTheViolation) {
  auto why = [](llvm::StringRef text) {
    return parse(text).verify(trainingParts(), 2).value_or("valid");
  };
  EXPECT_EQ(why("P0 P1 F0 F1 B0 B1 U"), "valid");
  EXPECT_EQ(why("P0 P1 F0 F1 B1 B0 U"), "valid");
  EXPECT_EQ(why("P0 F0 P1 F1 B0 B1 U"),
            "F0 reads results of P1, which has not run");
  EXPECT_EQ(why("P0 P1 F0 B1 F1 B0 U"),
            "B1 reads results of F1, which has not run");
  EXPECT_EQ(why("P0 P1 F0 F1 B0 U B1"),
            "U reads results of B1, which has not run");
  EXPECT_EQ(why("P0 P1 F0 F0 B0 B1 U"), "F0 runs twice");
  EXPECT_EQ(why("P0 P1 F0 F1 B0 B1"), "U never runs");
  EXPECT_EQ(why("P0 P1 F0 F1 B0 B1 U0"),
            "U0: this part runs once and has no micro-batch");
  EXPECT_EQ(why("P0 P1 F"), "F: this part needs a micro-batch");
  EXPECT_EQ(why("P0 P1 F2"), "F2: there are only 2 micro-batches");
  EXPECT_EQ(why("P0 P1 1F0"), "1F0: unknown part; the last stage is 0");
}

TEST(Schedule, EveryDropAndDuplicateIsFound) {
  Schedule schedule = Schedule::singleStage(trainingParts(), 4);
  for (size_t i = 0; i < schedule.actions().size(); ++i) {
    Schedule dropped = schedule, doubled = schedule;
    dropped.actions().erase(dropped.actions().begin() + i);
    doubled.actions().push_back(schedule.actions()[i]);
    EXPECT_TRUE(dropped.verify(trainingParts(), 4));
    EXPECT_TRUE(doubled.verify(trainingParts(), 4));
  }
}

/// The verifier agrees, on random orders, with the rule written out.
TEST(Schedule, RandomOrders) {
  std::mt19937 random(7);
  int64_t valid = 0;
  for (int round = 0; round < 2000; ++round) {
    Schedule schedule = Schedule::singleStage(trainingParts(), 2);
    auto &actions = schedule.actions();
    for (int swaps = random() % 4; swaps > 0; --swaps)
      std::swap(actions[random() % actions.size()],
                actions[random() % actions.size()]);
    auto at = [&](llvm::StringRef name) {
      return std::find_if(actions.begin(), actions.end(),
                          [&](const Action &a) { return a.str() == name; });
    };
    bool expected =
        std::max(at("P0"), at("P1")) < std::min(at("F0"), at("F1")) &&
        at("F0") < at("B0") && at("F1") < at("B1") &&
        std::max(at("B0"), at("B1")) < at("U");
    EXPECT_EQ(!schedule.verify(trainingParts(), 2), expected) << schedule.str();
    valid += expected;
  }
  EXPECT_GT(valid, 100);
  EXPECT_LT(valid, 1900);
}

/// Two stages, whose updates read norms of both (N), which read reductions (R);
/// each stage gathers (G) in front.
std::vector<PartInfo> stagesThatSend() {
  std::vector<PartInfo> parts;
  for (int64_t s : {0, 1}) {
    unsigned g = parts.size(), f = g + 1, b = g + 2;
    parts.push_back({"G", true, s, {}});
    parts.push_back({"F", false, s, {{g, true}}});
    parts.push_back({"B", false, s, {{g, true}, {f, true}}});
    parts.push_back({"R", true, s, {{b, false}}});
    if (s == 1) {
      parts[f].uses.push_back({1, true});
      parts[2].uses.push_back({b, true});
    }
  }
  for (int64_t s : {0, 1})
    parts.push_back({"N", true, s, {{s == 0 ? 3u : 7u, true}}});
  for (int64_t s : {0, 1})
    parts.push_back(
        {"U", true, s, {{s == 0 ? 3u : 7u, true}, {8, true}, {9, true}}});
  return parts;
}

TEST(Schedule, OtherPartsComeBeforeWhatWaitsForThem) {
  std::vector<PartInfo> parts = stagesThatSend();
  auto add = [&](llvm::StringRef text) {
    return insertMissingParts(parse(text), parts, 2,
                              {StageMap::Kind::Modular, 2})
        .str();
  };
  const char *all = "G F0 F1 B0 B1 R N U | 1G 1F0 1B0 1F1 1B1 1R 1N 1U";
  EXPECT_EQ(add("F0 F1 B0 B1 | 1F0 1B0 1F1 1B1"), all);
  EXPECT_EQ(add("F0 F1 B0 B1 U | 1F0 1B0 1F1 1B1 1U"), all);
  EXPECT_EQ(add("F0 F1 B0 B1 N U | 1F0 1B0 1F1 1B1 1R 1U"), all);
  // What is written stands where it was.
  EXPECT_EQ(add("G F0 F1 B0 B1 R | 1F0 1B0 1F1 1G 1B1"),
            "G F0 F1 B0 B1 R N U | 1F0 1B0 1F1 1G 1B1 1R 1N 1U");
}

} // namespace
