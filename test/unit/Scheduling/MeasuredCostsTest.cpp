//===- MeasuredCostsTest.cpp - Costs from timelines of steps --------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/Timeline/MeasuredCosts.h"
#include "Schedules.h"
#include "cleave/Scheduling/InsertTransfers.h"

using namespace cleave::scheduling;

namespace {

/// A row of events of which only names and times count.
Timeline::Row
row(llvm::ArrayRef<std::tuple<llvm::StringRef, double, double>> events) {
  Timeline::Row made;
  for (auto [action, start, end] : events)
    made.events.push_back({action.str(), EventKind::Other, -1, start, end});
  return made;
}

std::string measure(llvm::ArrayRef<Timeline> steps) {
  std::string error;
  auto costs = MeasuredCosts::of(steps, error);
  return costs ? costs->str() : "error: " + error;
}

TEST(MeasuredCosts, AreMediansOfAllButTheFirstStep) {
  Timeline first{"x", {row({{"F0", 0, 90}, {"F1", 90, 180}, {"U", 180, 270}})}};
  Timeline second{"x", {row({{"F0", 0, 1}, {"F1", 1, 3}, {"U", 3, 4}})}};
  Timeline third{"x", {row({{"F0", 0, 5}, {"F1", 5, 9}, {"U", 9, 14}})}};
  EXPECT_EQ(measure({first, second, third}), "F=3,U=3");
  // There is no other one.
  EXPECT_EQ(measure(first), "F=90,U=90");
}

TEST(MeasuredCosts, TransfersTakeFromWhenBothEndsHaveComeToThem) {
  Timeline step{"x",
                {row({{"F0", 0, 4},
                      {"F0>1", 4, 4.5},
                      {"F1", 5, 9},
                      {"F1>1", 9, 9.5},
                      {"G0", 10, 11},
                      {"G1", 11, 12},
                      {"G1>1", 12, 12}}),
                 // The first is waited for, the second is late.
                 row({{"1<F0", 0, 7},
                      {"1F0", 7, 12},
                      {"1<F1", 12, 13},
                      {"1F1", 13, 17},
                      {"1<G1", 17, 19},
                      // Of which no sender is seen.
                      {"1<H0", 0, 50}})}};
  // 7 - 4 and 13 - 12.
  EXPECT_EQ(measure(step), "F=4,G=1,1F=4.5,F>=2,G>=2");
}

TEST(MeasuredCosts, BadTimelines) {
  EXPECT_EQ(measure(Timeline{"x", {row({{"step 1", 0, 1}})}}),
            "error: the event 'step 1' is not an action of a schedule, such as "
            "1F0, F0>1 or U");
  for (const char *name : {"F?", "", "1000000000F0", "{9+1: F0}"})
    EXPECT_TRUE(llvm::StringRef(measure(Timeline{"x", {row({{name, 0, 1}})}}))
                    .starts_with("error: the event"))
        << name;
  EXPECT_EQ(measure(Timeline{"x", {row({{"F0>1", 0, 1}})}}),
            "error: no event is a run of a part");
  EXPECT_EQ(measure({}), "error: no event is a run of a part");
}

TEST(MeasuredCosts, AreText) {
  std::string error;
  for (const char *text : {"F=1.5", "F=0.25,1F=2e-05,F>=0.125,1F>=0"}) {
    auto costs = MeasuredCosts::parse(text, error);
    ASSERT_TRUE(costs) << error;
    EXPECT_EQ(costs->str(), text);
  }
  for (const char *text : {"F", "F=", "F=x", "F=-1", "F=nan", "F=inf", "=1",
                           "F0=1", "F>1=1", "1<F=1"}) {
    EXPECT_FALSE(MeasuredCosts::parse(text, error)) << text;
    EXPECT_TRUE(llvm::StringRef(error).contains("is not a cost")) << error;
  }
}

TEST(MeasuredCosts, WhatWasComputedTellsModelsApart) {
  std::string error;
  Timeline timeline{"measured", {{"position 0", {}}}};
  timeline.rows[0].events.push_back(
      {"F0", EventKind::Forward, 0, 0, 1, /*flops=*/1000});
  timeline.rows[0].events.push_back({"B0", EventKind::Backward, 0, 1, 2});
  auto costs = MeasuredCosts::of(timeline, error);
  ASSERT_TRUE(costs) << error;
  EXPECT_EQ(costs->str(), "B=1,F=1,F#=1000");
  auto again = MeasuredCosts::parse(costs->str(), error);
  ASSERT_TRUE(again) << error;
  std::vector<PartInfo> parts(2);
  parts[0].name = "F";
  parts[1].name = "B";
  EXPECT_EQ(again->checkWork(parts, {1000.0, 5.0}), "");
  // As good as the same; not said by who asks.
  EXPECT_EQ(again->checkWork(parts, {1040.0, 5.0}), "");
  EXPECT_EQ(again->checkWork(parts, {0.0, 5.0}), "");
  EXPECT_EQ(
      again->checkWork(parts, {2000.0, 5.0}),
      "the measurement is of another model: a run of F has 1.000e+03 "
      "floating-point operations in it, and 2.000e+03 in this program; measure "
      "a run of this model with the same mesh, stages and micro-batch size");
}

TEST(MeasuredCosts, FitParts) {
  Made made("1f1b", 2, 1, 4);
  std::string error;
  auto of = [&](const char *text) {
    auto costs = MeasuredCosts::parse(text, error);
    EXPECT_TRUE(costs) << error;
    error.clear();
    return costs->costsOf(made.parts, error);
  };
  auto costs = of("F=1,I=2,W=3,U=4,1F=5,1I=6,1W=7,1U=8,F>=9");
  ASSERT_TRUE(costs) << error;
  std::map<std::pair<int64_t, std::string>, std::pair<double, double>> found;
  for (auto [p, part] : llvm::enumerate(made.parts))
    found[{part.stage, part.name}] = {costs->ofPart(made.parts, p),
                                      costs->transfer[p]};
  EXPECT_EQ((found[{0, "F"}]), std::make_pair(1.0, 9.0));
  EXPECT_EQ((found[{1, "W"}]), std::make_pair(7.0, 0.0));
  // What does two parts at once takes their time, unless it was measured.
  EXPECT_EQ((found[{1, "B"}].first), 13);
  costs = of("F=1,I=2,W=3,U=4,1F=5,1I=6,1W=7,1U=8,1B=10");
  ASSERT_TRUE(costs) << error;
  for (auto [p, part] : llvm::enumerate(made.parts))
    if (part.name == "B" && part.stage == 1)
      EXPECT_EQ(costs->ofPart(made.parts, p), 10);
  EXPECT_FALSE(of("F=1,I=2,W=3,U=4"));
  EXPECT_TRUE(llvm::StringRef(error).starts_with(
      "the measurement has 1 stages, and the program has 2;"))
      << error;
  EXPECT_FALSE(of("F=1,I=2,U=4,1F=5,1I=6,1W=7"));
  EXPECT_TRUE(llvm::StringRef(error).starts_with(
      "the measurement lacks W, 1U; measure"))
      << error;
}

/// A simulation that is taken for a run gives back what it was made of.
TEST(MeasuredCosts, ThoseOfASimulationAreItsOwn) {
  for (const char *name : {"gpipe", "1f1b", "zb-h1", "zb-v"}) {
    std::string error;
    Made made(name, 2, findGenerator(name, error)->chunks, 4);
    std::vector<std::pair<llvm::StringRef, double>> all = {
        {"F", 2}, {"I", 3}, {"W", 4}, {"U", 5}};
    Costs costs = Costs::uniform(made.parts, all);
    costs.transfer.assign(made.parts.size(), 1);
    auto schedule =
        insertTransfers(made.schedule, made.parts, 4, made.map, error);
    ASSERT_TRUE(schedule) << error;
    auto simulation =
        simulate(*schedule, made.parts, 4, made.map, costs, error);
    ASSERT_TRUE(simulation) << error;
    Timeline timeline = makeTimeline("x", *schedule, *simulation);
    auto measured = MeasuredCosts::of(timeline, error);
    ASSERT_TRUE(measured) << error;
    for (const auto &[part, seconds] : measured->run) {
      double expected = part.second == "B" ? 7 : 0;
      for (auto [other, cost] : all)
        if (other == part.second)
          expected = cost;
      EXPECT_EQ(seconds, expected) << name << " " << part.second;
    }
    EXPECT_FALSE(measured->transfer.empty());
    for (const auto &[part, seconds] : measured->transfer)
      EXPECT_EQ(seconds, 1) << name << " " << part.second;
  }
}

} // namespace
