//===- LossScaleTest.cpp - The rule of the loss scale ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Session/LossScale.h"
#include "gtest/gtest.h"

using namespace cleave::runtime;

/// The published number of Megatron's rule.
TEST(LossScaleTest, FallsFromTwoToThe32In17Steps) {
  LossScaling settings;
  settings.initial = 0x1p32f;
  auto state = LossScaleState::initial(settings);
  int skipped = 0;
  while (state.scale > 0x1p16) {
    state.update(settings, /*finite=*/false);
    ++skipped;
  }
  EXPECT_EQ(skipped, 17);
  EXPECT_EQ(state.scale, 0x1p16);
}

TEST(LossScaleTest, AWindowDoublesIt) {
  LossScaling settings;
  settings.initial = 8;
  settings.window = 3;
  auto state = LossScaleState::initial(settings);
  auto steps = [&](bool finite, int count) {
    while (count-- > 0)
      state.update(settings, finite);
    return state;
  };
  EXPECT_EQ(steps(true, 2), (LossScaleState{8, 2, 2}));
  EXPECT_EQ(steps(true, 1), (LossScaleState{16, 0, 2}));
  // An overflow restarts the window, and does not halve at first.
  EXPECT_EQ(steps(true, 2), (LossScaleState{16, 2, 2}));
  EXPECT_EQ(steps(false, 1), (LossScaleState{16, 0, 1}));
  EXPECT_EQ(steps(true, 2), (LossScaleState{16, 2, 1}));
  // The hysteresis lasts until a window is full.
  EXPECT_EQ(steps(false, 1), (LossScaleState{8, 0, 0}));
  EXPECT_EQ(steps(false, 1), (LossScaleState{4, 0, 0}));
  EXPECT_EQ(steps(true, 3), (LossScaleState{8, 0, 2}));
}

TEST(LossScaleTest, HasBounds) {
  LossScaling settings;
  settings.initial = 2;
  settings.window = 1;
  auto state = LossScaleState::initial(settings);
  for (int i = 0; i < 4; ++i)
    state.update(settings, /*finite=*/false);
  EXPECT_EQ(state.scale, 1);
  EXPECT_FALSE(state.canFall(settings));
  for (int i = 0; i < 200; ++i)
    state.update(settings, /*finite=*/true);
  EXPECT_EQ(state.scale, 0x1p127);
  settings.dynamic = false;
  state.update(settings, /*finite=*/false);
  EXPECT_EQ(state.scale, 0x1p127);
  EXPECT_FALSE(state.canFall(settings));
}
