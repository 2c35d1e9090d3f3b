//===- PlacesTest.cpp - Where what is wrong stands in the text ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/Check/Verify.h"
#include "cleave/Scheduling/Pipeline.h"
#include "llvm/Support/FormatVariadic.h"
#include "gtest/gtest.h"

using namespace cleave::scheduling;

namespace {

std::string str(const TextPlace &place) {
  return llvm::formatv("{0}:{1}", place.line, place.column);
}

TEST(Places, OfActions) {
  std::string error;
  SchedulePlaces places;
  auto schedule = Schedule::parse("# first\n"
                                  "  F0 F0>1 {2+1: B0  B4} | -\n"
                                  "\n"
                                  "\t1<F0 # last\n",
                                  error, &places);
  ASSERT_TRUE(schedule) << error;
  ASSERT_EQ(places.actions.size(), 3u);
  std::vector<std::string> first;
  for (const TextPlace &place : places.actions[0])
    first.push_back(str(place));
  EXPECT_EQ(first, (std::vector<std::string>{"2:3", "2:6", "2:17", "2:21",
                                             "2:17", "2:21"}));
  EXPECT_TRUE(places.actions[1].empty());
  EXPECT_EQ(str(places.devices[1]), "2:27");
  EXPECT_EQ(str(places.actions[2][0]), "4:2");
}

/// Where the text cannot be read.
std::string wrongAt(llvm::StringRef text) {
  std::string error;
  SchedulePlaces places;
  EXPECT_FALSE(Schedule::parse(text, error, &places)) << text.str();
  return str(places.error) + " " + error;
}

TEST(Places, OfWhatCannotBeRead) {
  EXPECT_TRUE(llvm::StringRef(wrongAt("F0\nF1 ?2"))
                  .starts_with("2:4 '?2' is not an action"));
  EXPECT_TRUE(llvm::StringRef(wrongAt("F0 | \n F1"))
                  .starts_with("1:5 pipeline position 1 has no actions"));
  EXPECT_TRUE(llvm::StringRef(wrongAt("F0 {2+1: F1\nF2"))
                  .starts_with("1:4 a repeat is not closed"));
  EXPECT_TRUE(llvm::StringRef(wrongAt("F0\n  F1}"))
                  .starts_with("2:3 '}' without an open repeat"));
  // What cannot be printed is not, and what is long is cut.
  EXPECT_TRUE(llvm::StringRef(wrongAt(llvm::StringRef("F0 \x7f\x45\0\xff", 7)))
                  .starts_with("1:4 '\\7FE\\00\\FF' is not"));
  EXPECT_TRUE(llvm::StringRef(wrongAt(std::string(100000, 'x')))
                  .contains("xxx...' is not an action"));
  EXPECT_LT(wrongAt(std::string(100000, '?')).size(), 300u);
}

/// The places of the actions of the violation of two stages at two positions,
/// and two micro-batches.
std::string violationAt(llvm::StringRef text) {
  std::string error;
  SchedulePlaces places;
  auto schedule = Schedule::parse(text, error, &places);
  EXPECT_TRUE(schedule) << error;
  PipelineOptions options;
  options.split = false;
  auto violation = findViolation(*schedule, describePipeline(2, options), 2,
                                 {StageMap::Kind::Modular, 2});
  if (!violation)
    return "valid";
  std::string result;
  for (const ActionRef &action : violation->actions) {
    const std::vector<TextPlace> &own = places.actions[action.device];
    result += action.index < own.size()
                  ? str(own[action.index])
                  : "list " + str(places.devices[action.device]);
    result += " ";
  }
  return result + violation->text;
}

TEST(Places, OfViolations) {
  auto starts = [](llvm::StringRef text, llvm::StringRef wanted) {
    std::string found = violationAt(text);
    EXPECT_TRUE(llvm::StringRef(found).starts_with(wanted)) << found;
  };
  starts("F0 F1 B0 B1 U\n1F0 1B0 1F1 1B1 1U", "valid");
  starts("F0 F1 B0 B1 U\n1F0 1B0 1F1 1F1 1B1 1U", "2:13 2:9 1F1 runs twice");
  starts("F0 F1 I0 B1 U\n1F0 1B0 1F1 1B1 1U",
         "1:7 I0: unknown part, because backward is not split; write B0");
  starts("F0 F1 B0 B1 U\n1F0 1B0 1F1 1B1 1U 5F0",
         "2:20 5F0: unknown part; the last stage is 1");
  starts("F0 F1 X0 B1 U\n1F0 1B0 1F1 1B1 1U",
         "1:7 X0: unknown part; the parts of stage 0 are F, B, U");
  starts("F0 F1 B0 B1 U\n1F0 1B0 1F1 1U",
         "list 2:1 1:10 1B1 never runs, and B1 reads its results");
  starts("F0 F1 B0 B1\n1F0 1B0 1F1 1B1 1U", "list 1:1 U never runs");
  starts("F0 1F0 F1 B0 B1 U\n1B0 1F1 1B1 1U",
         "1:4 1F0 is listed at pipeline position 0");
  starts("F0 F1 B0 B1 U\n1F0 1B0 1F1 1B1 1U\n2F0",
         "list 3:1 expected 2 lists of actions");
  starts("F0 F1 B0 B1 U", "list 1:1 expected 2 lists of actions");
  starts("F0 B0 F1 B1 U\n1F0 1F1 1B1 1B0 1U",
         "1:4 2:5 deadlock: B0 at pipeline position 0 waits for 1B0 at "
         "position 1");
  starts("F0 F0>1 F1 0<1B0 F1>1 B0 0<1B1 B1 U\n"
         "1<F0 1F0 1<F1 1F1 1B0 1B0>0 1B1 1B1>0 1U",
         "1:12 2:10 pipeline positions 0 and 1 list their transfers in "
         "different orders");
  starts("F0 F0>1 F1 F1>1 B0 B1 U\n1<F0 1F0 1<F1 1F1 1B0 1B1 1U",
         "1:17 2:19 B0 reads results of 1B0, which pipeline position 0 has not "
         "received");
  starts("F0 F0>1 F0>1 F1 B0 B1 U\n1<F0 1F0 1F1 1B0 1B1 1U",
         "1:9 1:4 F0>1 is listed twice");
}

} // namespace
