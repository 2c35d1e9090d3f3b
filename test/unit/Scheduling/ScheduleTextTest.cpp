//===- ScheduleTextTest.cpp - Schedules of several devices as text --------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/Schedule.h"
#include "cleave/Scheduling/StageMap.h"
#include "gtest/gtest.h"
#include <algorithm>
#include <random>

using namespace cleave::scheduling;

namespace {

Schedule parse(llvm::StringRef text) {
  std::string error;
  std::optional<Schedule> schedule = Schedule::parse(text, error);
  EXPECT_TRUE(schedule) << error;
  return schedule ? *schedule : Schedule();
}

std::string errorOf(llvm::StringRef text) {
  std::string error = "none";
  EXPECT_FALSE(Schedule::parse(text, error)) << text.str();
  return error;
}

TEST(ScheduleText, IdleDevice) {
  std::string error;
  auto schedule = Schedule::parse("F0 | - | 2F0", error);
  ASSERT_TRUE(schedule) << error;
  ASSERT_EQ(schedule->devices.size(), 3u);
  EXPECT_TRUE(schedule->devices[1].empty());
  EXPECT_EQ(schedule->str(), "F0 | - | 2F0");
  EXPECT_EQ(schedule->compact(), "F0 | - | 2F0");
}

TEST(ScheduleText, DevicesAndTransfers) {
  Schedule schedule = parse("# two devices\n"
                            "F0 0F0>1 0<1B0 B0 U # the first\n"
                            "\n"
                            "1<F0 1F0 1B0 1B0>0 1U\n");
  ASSERT_EQ(schedule.devices.size(), 2u);
  EXPECT_EQ(schedule.devices[0][1], (Action{"F", 0, 0}).send(1));
  EXPECT_EQ(schedule.devices[0][2], (Action{"B", 0, 1}).receive(0));
  EXPECT_EQ(schedule.devices[1][0], (Action{"F", 0, 0}).receive(1));
  EXPECT_EQ(schedule.str(), "F0 F0>1 0<1B0 B0 U | 1<F0 1F0 1B0 1B0>0 1U");
  EXPECT_EQ(parse(schedule.str()), schedule);
  EXPECT_EQ(parse(schedule.str("\n")), schedule);
  EXPECT_EQ(parse("3<P P>3").str(), "3<P P>3");
  EXPECT_EQ(parse("").devices.size(), 1u);
  EXPECT_EQ(parse("\n# nothing\n").str(), "");
}

TEST(ScheduleText, OneAction) {
  for (const char *text : {"F3", "12I0", "U", "F0>1", "1<F3", "0<2P"}) {
    std::optional<Action> action = Action::parse(text);
    ASSERT_TRUE(action) << text;
    EXPECT_EQ(action->str(), text);
  }
  for (const char *text : {"", "3", "F0 B0", "F0>", "{2+1: F0}", "F*"})
    EXPECT_FALSE(Action::parse(text)) << text;
  // The same for all micro-batches.
  for (auto [text, pattern] :
       {std::pair("F3", "F*"), std::pair("12I0", "12I*"), std::pair("U", "U"),
        std::pair("2F10>1", "2F*>1"), std::pair("0<1F3", "0<1F*")})
    EXPECT_EQ(Action::parse(text)->pattern(), pattern);
}

TEST(ScheduleText, Repeats) {
  EXPECT_EQ(parse("{3+1: F2} U").str(), "F2 F3 F4 U");
  EXPECT_EQ(parse("{2+4: F0 1F3>2} B0").str(), "F0 1F3>2 F4 1F7>2 B0");
}

TEST(ScheduleText, Errors) {
  auto says = [](llvm::StringRef text, llvm::StringRef part) {
    std::string error = errorOf(text);
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  for (const char *word : {"F0>", ">1", "<F0", "1<", "1<F0>2", "F0>1<2", "a<F0",
                           "F0>-1", "1<2<F0", "F0>99999999999999999999"})
    says(word, "is not an action");
  says("F0 | | F1", "pipeline position 1 has no actions");
  says("F0 |", "pipeline position 1 has no actions");
  for (const char *word : {"{", "{:", "{3: F0}", "{0+1: F0}", "{3+0: F0}",
                           "{+: F0}", "{3+1 F0}", "{3+1-1: F0}"})
    says(word, "is not the beginning of a repeat");
  says("F0}", "without an open repeat");
  says("{2+1: F0", "is not closed");
  says("{2+1: F0 {2+1: F1} }", "cannot be nested");
  says("{2+1: }", "has no actions");
  says("{2+1: F0 U}", "'U' has no micro-batch");
  says("{3-1: F1}", "falls below micro-batch 0");
  says("{99999999999+1: F1}", "is too long");
  says("{9000000+1: F0} | {9000000+1: 1F0}", "is too long");
  says("{2+1: F9223372036854775807}",
       "has too large a micro-batch to be repeated");
}

/// 1F1B on position `r` of `p`.
std::string alternating(int64_t p, int64_t r, int64_t m) {
  int64_t warm = std::min(m, p - r);
  std::string text;
  for (int64_t i = 0; i < m + warm; ++i) {
    if (i < m)
      text += 'F' + std::to_string(i) + ' ';
    if (i >= warm - 1 && i - warm + 1 < m)
      text += 'B' + std::to_string(i - warm + 1) + ' ';
  }
  return text + "U";
}

TEST(ScheduleText, CompactTextDoesNotGrowWithMicroBatches) {
  auto words = [](const std::string &text) {
    return std::count(text.begin(), text.end(), ' ');
  };
  for (int64_t r = 0; r < 16; ++r) {
    Schedule small = parse(alternating(16, r, 64));
    Schedule large = parse(alternating(16, r, 512));
    EXPECT_EQ(parse(small.compact()), small);
    EXPECT_EQ(parse(large.compact()), large);
    EXPECT_EQ(words(large.compact()), words(small.compact()));
    EXPECT_LE(words(large.compact()), 8);
  }
  EXPECT_EQ(parse(alternating(4, 3, 8)).compact(), "{8+1: F0 B0} U");
  EXPECT_EQ(parse("F4 F3 F2 F1 B0 B2").compact(), "{4-1: F4} B0 B2");
}

TEST(ScheduleText, RandomSchedulesRoundTrip) {
  std::mt19937 random(5);
  for (int round = 0; round < 500; ++round) {
    Schedule schedule;
    schedule.devices.resize(1 + random() % 3);
    for (std::vector<Action> &actions : schedule.devices) {
      for (int i = 1 + random() % 30; i > 0; --i) {
        Action action{std::string(1, "FBW"[random() % 3]),
                      int64_t(random() % 5) - 1, int64_t(random() % 2)};
        int kind = random() % 4;
        actions.push_back(kind == 0   ? action.send(random() % 3)
                          : kind == 1 ? action.receive(random() % 3)
                                      : action);
      }
    }
    EXPECT_EQ(parse(schedule.str()), schedule);
    EXPECT_EQ(parse(schedule.compact()), schedule) << schedule.compact();
    EXPECT_LE(schedule.compact().size(), schedule.str().size() + 1);
  }
}

TEST(StageMap, Devices) {
  auto devices = [](const char *name, int64_t p, int64_t stages,
                    int64_t microBatch) {
    std::string error;
    std::optional<StageMap> map = StageMap::parse(name, p, error);
    EXPECT_TRUE(map) << error;
    EXPECT_EQ(map->name(), name);
    EXPECT_FALSE(map->check(stages));
    std::vector<int64_t> result;
    for (int64_t stage = 0; stage < stages; ++stage)
      result.push_back(map->device(stage, microBatch));
    return result;
  };
  using List = std::vector<int64_t>;
  EXPECT_EQ(devices("modular", 3, 6, 0), (List{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(devices("v", 3, 9, 1), (List{0, 1, 2, 2, 1, 0, 0, 1, 2}));
  EXPECT_EQ(devices("bidirectional", 3, 3, 4), (List{0, 1, 2}));
  EXPECT_EQ(devices("bidirectional", 3, 3, 5), (List{2, 1, 0}));
  StageMap both{StageMap::Kind::Bidirectional, 3};
  EXPECT_EQ(both.devicesOf(0).size(), 2u);
  EXPECT_EQ(both.devicesOf(1).size(), 1u);
  EXPECT_TRUE(both.check(6));
  EXPECT_TRUE((StageMap{StageMap::Kind::Modular, 4}).check(6));
  EXPECT_TRUE((StageMap{StageMap::Kind::V, 4}).check(2));
  std::string error;
  EXPECT_FALSE(StageMap::parse("spiral", 4, error));
  EXPECT_EQ(error,
            "unknown stage map 'spiral'; write modular, v or bidirectional");
  EXPECT_FALSE(StageMap::parse("v", 0, error));
}

} // namespace
