//===- PhiloxTest.cpp - The counter-based generator -----------------------
//===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Interpreter/Philox.h"
#include <gtest/gtest.h>

using namespace cleave;

using Words = std::array<uint32_t, 4>;

// The known answers that come with Random123.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                       {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, ElementsShareCountersInGroupsOfSixteen) {
  int64_t seed = 0x0123456789abcdef, step = 5, id = 9;
  for (int64_t index : {0, 15, 16, 63, 64, 127, 1000}) {
    uint32_t counter = index / 64 * 16 + index % 16;
    Words words = philox4x32({counter, 0, uint32_t(id), uint32_t(step)},
                             {0x89abcdef, 0x01234567});
    EXPECT_EQ(randomDraw(seed, step, id, index), words[index / 16 % 4]);
  }
}

TEST(Philox, CountersBeyond32Bits) {
  int64_t index = (int64_t(1) << 36) + 17;
  uint64_t counter = uint64_t(index) / 64 * 16 + 1;
  Words words =
      philox4x32({uint32_t(counter), uint32_t(counter >> 32), 1, 2}, {3, 0});
  EXPECT_EQ(randomDraw(3, 2, 1, index), words[1]);
}

TEST(Philox, Threshold) {
  EXPECT_EQ(dropThreshold(0.0), 0u);
  EXPECT_EQ(dropThreshold(0.5), 0x80000000u);
  EXPECT_EQ(dropThreshold(0.1), 429496729u);
}
