//===- CheckMessageTest.cpp - Messages and order of checks ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Support/CheckMessage.h"
#include "cleave/Runtime/Core/StepChecks.h"
#include "gtest/gtest.h"
#include <cmath>
#include <random>

using namespace cleave;
using namespace cleave::runtime;

namespace {

TEST(CheckMessage, FieldsAreValues) {
  int64_t values[] = {48, 33};
  auto said = [&](const char *message, int count = 2) {
    return checkMessage(message, values, count, 7);
  };
  EXPECT_EQ(said("rank {rank}: {0} of {1}, {1/20} times"),
            "rank 7: 48 of 33, 1.65 times");
  EXPECT_EQ(said("{0/24} {0/25} {1/30} {1/32} {0/1}"), "2 1.92 1.1 1.04 48");
  // Other braces are those of names.
  EXPECT_EQ(said("{layer} {2} {-1} {0/0} {0/x} {} {{0} {0"),
            "{layer} {2} {-1} {0/0} {0/x} {} {48 {0");
  EXPECT_EQ(said("}{1}{"), "}33{");
  EXPECT_EQ(said(""), "");
  // Without values nothing is a field.
  EXPECT_EQ(said("{rank} {0}", 0), "{rank} {0}");
}

/// A factor is never less than what it says, nor a hundredth more.
TEST(CheckMessage, QuotientsAreRoundedUp) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 2000; ++i) {
    auto count = static_cast<int64_t>(random() % 997 + 1),
         value = static_cast<int64_t>(random() % 100000);
    double shares = std::stod(quotientText(value, count));
    EXPECT_GE(std::ceil(shares * static_cast<double>(count)), value);
    EXPECT_LT((shares - 0.0101) * static_cast<double>(count), value);
  }
  EXPECT_EQ(quotientText(INT64_MAX, 1), std::to_string(INT64_MAX));
}

/// Others fail because of values computed after a buffer had too few rows.
TEST(StepChecks, TheMostSevereIsReported) {
  CheckCommand skips, ends, room;
  skips.message = "skips";
  skips.skips = true;
  ends.message = "ends";
  room.message = "rank {rank} needs {0}";
  room.room = true;
  room.count = 1;
  int64_t needed = 5;
  StepChecks checks;
  EXPECT_TRUE(checks.passed() && !checks.failed());
  checks.note(ends, true, nullptr);
  checks.note(room, true, &needed);
  EXPECT_TRUE(checks.passed());
  checks.note(skips, false, nullptr);
  EXPECT_EQ(checks.message(1), "skips");
  checks.note(ends, false, nullptr);
  checks.note(skips, false, nullptr);
  EXPECT_EQ(checks.message(1), "ends");
  checks.note(room, false, &needed);
  // The memory of values may be used for others later, and the first counts.
  needed = 9;
  checks.note(room, false, &needed);
  checks.note(ends, false, nullptr);
  EXPECT_EQ(checks.failed(), &room);
  EXPECT_EQ(checks.message(1), "rank 1 needs 5");
  EXPECT_FALSE(checks.passed());
}

} // namespace
