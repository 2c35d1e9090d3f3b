//===- PhiloxTest.cpp - Tests of random numbers ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Support/Philox.h"
#include "gtest/gtest.h"

using namespace cleave::runtime;

namespace {

/// The known answers that the authors of Philox publish for ten rounds.
TEST(Philox, KnownAnswers) {
  struct Case {
    uint32_t counter[4], key[2], expected[4];
  } cases[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const Case &c : cases) {
    uint32_t out[4];
    philox::block(c.counter, c.key, out);
    for (int i = 0; i < 4; ++i)
      EXPECT_EQ(out[i], c.expected[i]);
  }
}

TEST(Philox, VectorEqualsScalar) {
  philox::Stream stream{0x123456789abcdef0ull, 7, 42};
  for (uint64_t start :
       {uint64_t(0), uint64_t(64), uint64_t(1) << 20, (uint64_t(1) << 34) - 64,
        uint64_t(1) << 34, uint64_t(1) << 50}) {
    philox::Words words[4];
    philox::draw64(stream, start, words);
    for (uint64_t i = 0; i < 64; ++i)
      ASSERT_EQ(words[i / 16][i % 16], philox::draw(stream, start + i))
          << start << " + " << i;
  }
}

TEST(Philox, KeepsTheStatedShare) {
  EXPECT_EQ(philox::threshold(0.0f), 0u);
  EXPECT_EQ(philox::threshold(0.5f), 0x80000000u);
  philox::Stream stream{3, 1, 1};
  int64_t kept = 0, n = 1 << 18;
  for (int64_t i = 0; i < n; ++i)
    kept += philox::draw(stream, static_cast<uint64_t>(i)) >=
            philox::threshold(0.1f);
  // Five standard deviations.
  EXPECT_NEAR(double(kept) / n, 0.9, 5 * 0.3 / 512);
}

} // namespace
