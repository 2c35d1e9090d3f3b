//===- VerifyTest.cpp - Schedules of several devices are checked ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/Check/Verify.h"
#include "Schedules.h"
#include "cleave/Scheduling/Pipeline.h"
#include "llvm/ADT/Twine.h"
#include "gtest/gtest.h"

using namespace cleave::scheduling;

namespace {

Schedule parse(llvm::StringRef text) {
  std::string error;
  std::optional<Schedule> schedule = Schedule::parse(text, error);
  EXPECT_TRUE(schedule) << error;
  return schedule ? *schedule : Schedule();
}

/// Two stages at two positions, two micro-batches.
std::string why(llvm::StringRef text, const VerifyOptions &options = {},
                const PipelineOptions &pipeline = {}) {
  return verifySchedule(parse(text), describePipeline(2, pipeline), 2,
                        {StageMap::Kind::Modular, 2}, options)
      .value_or("valid");
}

constexpr llvm::StringLiteral kFirst("F0 F0>1 F1 0<1B0 F1>1 B0 0<1B1 B1 U"),
    kSecond("1<F0 1F0 1B0 1B0>0 1<F1 1F1 1B1 1B1>0 1U");

std::string both(llvm::StringRef first, llvm::StringRef second) {
  return (first + " | " + second).str();
}

TEST(Verify, AcceptsTransfersInOneOrder) {
  EXPECT_EQ(why(both(kFirst, kSecond)), "valid");
  EXPECT_EQ(why("F0 F1 B0 B1 U | 1F0 1B0 1F1 1B1 1U"), "valid");
  EXPECT_EQ(why("F0 F1 B1 I0 W0 U | 1F0 1F1 1I1 1B0 1W1 1U"), "valid");
}

TEST(Verify, NamesTheConflict) {
  EXPECT_EQ(why("F0 F1 B0 B1 U"),
            "expected 2 lists of actions, one for each pipeline position, got "
            "1; separate lists by '|'");
  EXPECT_EQ(why("F0 F1 B0 B1 1U U | 1F0 1B0 1F1 1B1"),
            "1U is listed at pipeline position 0; move it to position 1, which "
            "has stage 1");
  EXPECT_EQ(why("F0 F1 I0 B0 B1 U | 1F0 1B0 1F1 1B1 1U"),
            "B0 repeats the work of I0; remove one of them");
  EXPECT_EQ(why("F0 F1 I0 B1 U | 1F0 1B0 1F1 1B1 1U"),
            "W0 never runs, and U reads its results");
  EXPECT_EQ(why("F0 F1 W0 I0 B1 U | 1F0 1B0 1F1 1B1 1U"),
            "W0 reads results of I0, which has not run");
  EXPECT_EQ(why("F0 F1 B1 I0 W0 U | 1F0 1F1 1I0 1B1 1U"),
            "1W0 never runs, and 1U reads its results");
}

TEST(Verify, TransfersMustMatch) {
  EXPECT_EQ(why(both("F0 F1 F1>1 0<1B0 B0 0<1B1 B1 U", kSecond)),
            "1<F0 at pipeline position 1 has no matching send; write F0>1 at "
            "position 0");
  EXPECT_EQ(why(both(kFirst, "1F0 1B0 1B0>0 1<F1 1F1 1B1 1B1>0 1U")),
            "F0>1 at pipeline position 0 has no matching receive; write 1<F0 "
            "at position 1");
  EXPECT_EQ(why(both("F0 F0>1 F0>1 F1 0<1B0 F1>1 B0 0<1B1 B1 U", kSecond)),
            "F0>1 is listed twice; remove one of them");
  EXPECT_EQ(why(both("F0>1 F0 F1 0<1B0 F1>1 B0 0<1B1 B1 U", kSecond)),
            "F0>1 sends results of F0, which has not run; move it after that");
  EXPECT_EQ(why(both(kFirst, "1F0 1<F0 1B0 1B0>0 1<F1 1F1 1B1 1B1>0 1U")),
            "1F0 reads results of F0, which pipeline position 1 has not "
            "received; write 1<F0 before it and F0>1 after F0");
  EXPECT_EQ(
      why(both("F0 F0>0 F0>1 F1 0<1B0 F1>1 B0 0<1B1 B1 U", kSecond)),
      "F0>0: both stages are at pipeline position 0; remove the transfer");
  EXPECT_EQ(why(both("F0 F0>7 F1 0<1B0 F1>1 B0 0<1B1 B1 U", kSecond)),
            "F0>7: there are only 2 stages");
}

TEST(Verify, OneOrderForEachPair) {
  // Each waits in its own send for the other to receive.
  EXPECT_EQ(why(both("F0 F0>1 F1 F1>1 0<1B0 B0 0<1B1 B1 U", kSecond)),
            "pipeline positions 0 and 1 list their transfers in different "
            "orders: F1>1 at pipeline position 0 does not match 1B0>0 at "
            "pipeline position 1; use the same order at both positions");
}

TEST(Verify, Deadlock) {
  EXPECT_EQ(
      why("F0 B0 F1 B1 U | 1F1 1B1 1F0 1B0 1U"),
      "deadlock: B0 at pipeline position 0 waits for 1B0 at position 1, which "
      "comes after 1F1; 1F1 at pipeline position 1 waits for F1 at position 0, "
      "which comes after B0; change the order at one of these positions");
  // Three positions in a ring: every pair agrees, but all send first.
  std::vector<PartInfo> parts;
  for (int64_t s = 0; s < 3; ++s)
    parts.push_back({"A", false, s, {}});
  for (unsigned s = 0; s < 3; ++s)
    parts.push_back({"C", false, s, {{(s + 2) % 3, true}}});
  StageMap map{StageMap::Kind::Modular, 3};
  EXPECT_EQ(
      verifySchedule(
          parse("A0 A0>1 0<2A0 C0 | 1A0 1A0>2 1<A0 1C0 | 2A0 2A0>0 2<1A0 2C0"),
          parts, 1, map)
          .value_or("valid"),
      "deadlock: A0>1 at pipeline position 0 waits for 1<A0 at position 1, "
      "which comes after 1A0>2; 1A0>2 at pipeline position 1 waits for 2<1A0 "
      "at position 2, which comes after 2A0>0; 2A0>0 at pipeline position 2 "
      "waits for 0<2A0 at position 0, which comes after A0>1; change the order "
      "at one of these positions");
  EXPECT_FALSE(verifySchedule(
      parse("A0 A0>1 0<2A0 C0 | 1A0 1<A0 1A0>2 1C0 | 2A0 2<1A0 2A0>0 2C0"),
      parts, 1, map));
}

TEST(Verify, Collectives) {
  // G of each stage for all positions together, and R.
  std::vector<PartInfo> parts;
  for (int64_t s = 0; s < 2; ++s) {
    parts.push_back({"G", true, s, {}});
    parts.push_back({"R", true, s, {}});
  }
  StageMap map{StageMap::Kind::Modular, 2};
  VerifyOptions options;
  options.collectives = {{"G", {0, 1}}, {"R", {0, 1}}};
  auto check = [&](llvm::StringRef text) {
    return verifySchedule(parse(text), parts, 1, map, options)
        .value_or("valid");
  };
  EXPECT_EQ(check("G R | 1G 1R"), "valid");
  EXPECT_EQ(check("G R | 1R 1G"),
            "pipeline positions 0 and 1 list their collectives in different "
            "orders: G at pipeline position 0 does not match 1R at pipeline "
            "position 1; use the same order at all members");
  options.collectives = {};
  EXPECT_EQ(check("G R | 1R 1G"), "valid");
  options.collectives = {{"G", {0, 5}}};
  EXPECT_EQ(check("G R | 1R 1G"),
            "collective G: stage 5 does not have this part, or it runs once in "
            "some stages and for each micro-batch in others");

  // Both positions hold both stages, and update each together.
  map.kind = StageMap::Kind::Bidirectional;
  options.collectives = {};
  EXPECT_EQ(check("G 1G R 1R | G 1G R 1R"), "valid");
  EXPECT_EQ(check("G 1G R 1R | 1G G R 1R"),
            "pipeline positions 0 and 1 list their collectives in different "
            "orders: G at pipeline position 0 does not match 1G at pipeline "
            "position 1; use the same order at all members");
  EXPECT_EQ(check("G 1G R 1R | G 1G R"), "1R never runs");
}

TEST(Verify, Bidirectional) {
  // Micro-batch 0 goes down, 1 goes up.
  Schedule schedule = parse("F0 1F1 1B1 B0 U 1U | F1 1F0 1B0 B1 U 1U");
  StageMap map{StageMap::Kind::Bidirectional, 2};
  EXPECT_EQ(
      verifySchedule(schedule, describePipeline(2), 2, map).value_or("valid"),
      "valid");
  std::swap(schedule.devices[0][4], schedule.devices[0][5]);
  EXPECT_TRUE(verifySchedule(schedule, describePipeline(2), 2, map));
}

TEST(Verify, SavedLimit) {
  VerifyOptions options;
  options.savedLimit = 2;
  EXPECT_EQ(why("F0 F1 B0 B1 U | 1F0 1B0 1F1 1B1 1U", options), "valid");
  options.savedLimit = 1;
  EXPECT_EQ(why("F0 F1 B0 B1 U | 1F0 1B0 1F1 1B1 1U", options),
            "F1 at pipeline position 0 raises the amount saved to 2, over the "
            "limit of 1; move B0, which frees the results of F0, before it");
  // The gradient of the weights still needs what forward saved.
  EXPECT_EQ(why("F0 I0 F1 W0 B1 U | 1F0 1B0 1F1 1B1 1U", options),
            "F1 at pipeline position 0 raises the amount saved to 2, over the "
            "limit of 1; move W0, which frees the results of F0, before it");
  // What waits for the forward that exceeds it cannot run before.
  options.savedLimit = 0;
  EXPECT_EQ(why("F0 F1 B0 B1 U | 1F0 1B0 1F1 1B1 1U", options),
            "F0 at pipeline position 0 raises the amount saved to 1, over the "
            "limit of 0, and no action that can be moved before it frees any; "
            "raise the limit");
  // Of bytes the unit is said; of an order that was made, nothing to move.
  options.savedLimit = 1;
  options.savedInBytes = options.generated = true;
  EXPECT_EQ(why("F0 F1 B0 B1 U | 1F0 1B0 1F1 1B1 1U", options),
            "F1 at pipeline position 0 raises the amount saved to 2 bytes "
            "(0.0000 MiB), over the limit of 1 bytes (0.0000 MiB)");
}

TEST(Verify, Staleness) {
  PipelineOptions pipeline;
  pipeline.asynchronous = true;
  constexpr llvm::StringLiteral text(
      "F0 F1 B0 U0 B1 U1 | 1F0 1B0 1U0 1F1 1B1 1U1");
  VerifyOptions options;
  options.staleness = 1;
  EXPECT_EQ(why(text, options, pipeline), "valid");
  options.staleness = 0;
  EXPECT_EQ(
      why(text, options, pipeline),
      "U1 at pipeline position 0 has a staleness of 1 updates since F1 read "
      "the parameters, over the bound of 0; move F1 after more updates");
}

/// All parts of a micro-batch read the version that the first of them read.
TEST(Verify, VersionsAreKept) {
  PipelineOptions pipeline;
  pipeline.asynchronous = true;
  std::vector<PartInfo> parts = describePipeline(1, pipeline);
  PartInfo later{"R", false, 0, {{0, true}}};
  parts.push_back(later);
  auto found = [&](llvm::StringRef text) {
    return verifySchedule(parseSchedule(text), parts, 2, StageMap())
        .value_or("valid");
  };
  EXPECT_EQ(found("F0 F1 B0 R0 U0 R1 B1 U1"), "valid");
  EXPECT_EQ(
      found("F0 F1 B0 U0 R0 R1 B1 U1"),
      "R0 at pipeline position 0 reads parameters after U0, which released the "
      "version that the micro-batch reads; move it before that");
  // What reads none may come at any time.
  parts.back().reads = false;
  EXPECT_EQ(found("F0 F1 B0 U0 R0 R1 B1 U1"), "valid");
}

} // namespace
