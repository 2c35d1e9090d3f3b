//===- PackingTest.cpp - Packing against brute force ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/Transforms/Memory/Packing.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/MathExtras.h"
#include "gtest/gtest.h"
#include <random>

using namespace cleave::exec;

/// No two buffers in use at one time overlap; all are aligned and below the
/// peak.
static void check(const std::vector<Interval> &intervals,
                  const Packing &packing) {
  ASSERT_EQ(packing.offsets.size(), intervals.size());
  for (size_t i = 0; i < intervals.size(); ++i) {
    int64_t at = packing.offsets[i];
    ASSERT_GE(at, 0);
    ASSERT_EQ(at % kAlignment, 0);
    ASSERT_LE(at + intervals[i].bytes, packing.peak);
    for (size_t j = 0; j < i; ++j) {
      if (!intervals[i].overlaps(intervals[j]))
        continue;
      int64_t other = packing.offsets[j];
      ASSERT_TRUE(at + intervals[i].bytes <= other ||
                  other + intervals[j].bytes <= at)
          << i << " and " << j;
    }
  }
}

/// The most bytes in use at one time, by looking at every time.
static int64_t liveByBruteForce(const std::vector<Interval> &intervals) {
  int64_t last = 0, most = 0;
  for (const Interval &interval : intervals)
    last = std::max(last, interval.end);
  for (int64_t time = 0; time <= last; ++time) {
    int64_t live = 0;
    for (const Interval &interval : intervals)
      if (interval.begin <= time && time <= interval.end)
        live += llvm::alignTo(interval.bytes, kAlignment);
    most = std::max(most, live);
  }
  return most;
}

TEST(Packing, Empty) {
  Packing packing = pack({});
  EXPECT_EQ(packing.peak, 0);
  EXPECT_EQ(packing.lowerBound, 0);
}

TEST(Packing, EqualListsArePackedOnce) {
  std::vector<Interval> one = {{0, 1, 100}, {2, 3, 128}, {0, 3, 64}},
                        same = one, other = one, shorter = one;
  other.back().end = 2;
  shorter.pop_back();
  Packings packings;
  const Packing &first = packings.pack(one);
  EXPECT_EQ(&packings.pack(same), &first);
  EXPECT_EQ(packings.size(), 1u);
  for (const std::vector<Interval> &list : {one, other, shorter}) {
    const Packing &packing = packings.pack(list);
    check(list, packing);
    EXPECT_EQ(packing.offsets, pack(list).offsets);
  }
  EXPECT_EQ(packings.size(), 3u);
}

TEST(Packing, ReusesWhatEnded) {
  // The second begins after the first has ended; the third meets both.
  std::vector<Interval> intervals = {{0, 1, 100}, {2, 3, 128}, {0, 3, 64}};
  Packing packing = pack(intervals);
  check(intervals, packing);
  EXPECT_EQ(packing.peak, 192);
}

TEST(Packing, EndsAreInclusive) {
  std::vector<Interval> intervals = {{0, 1, 64}, {1, 2, 64}};
  Packing packing = pack(intervals);
  check(intervals, packing);
  EXPECT_EQ(packing.peak, 128);
}

TEST(Packing, RandomIntervals) {
  std::mt19937_64 rng(7);
  double worst = 1, sum = 0;
  int count = 300;
  for (int round = 0; round < count; ++round) {
    size_t n = 1 + rng() % 120;
    int64_t horizon = 1 + rng() % 200;
    std::vector<Interval> intervals;
    for (size_t i = 0; i < n; ++i) {
      int64_t begin = rng() % horizon;
      // Most are short; sizes span four orders of magnitude.
      int64_t length = rng() % 8 == 0 ? rng() % horizon : rng() % 6;
      int64_t bytes = 1 + rng() % (int64_t(64) << (rng() % 12));
      intervals.push_back({begin, begin + length, bytes});
    }
    Packing packing = pack(intervals);
    check(intervals, packing);
    EXPECT_EQ(packing.lowerBound, liveByBruteForce(intervals));
    ASSERT_GE(packing.peak, packing.lowerBound);
    double ratio = double(packing.peak) / packing.lowerBound;
    worst = std::max(worst, ratio);
    sum += ratio;
  }
  RecordProperty("mean_ratio", std::to_string(sum / count));
  RecordProperty("worst_ratio", std::to_string(worst));
  std::printf("peak / lower bound: mean %.4f, worst %.4f\n", sum / count,
              worst);
  EXPECT_LE(sum / count, 1.01);
  EXPECT_LE(worst, 1.03);
}

/// Many buffers, most of which begin and end in a small part of the time: as in
/// a pipeline, whose warm-up and update have more buffers than its period.
TEST(Packing, CrowdedTimes) {
  std::mt19937_64 rng(11);
  for (size_t n : {300, 600, 2100}) {
    std::vector<Interval> intervals;
    for (size_t i = 0; i < n; ++i) {
      // A third is in use for long, and a third ends at one of few times.
      int64_t begin = rng() % 8 == 0 ? rng() % 5000 : rng() % 60;
      int64_t end = i % 3 == 0   ? begin + int64_t(rng() % 4)
                    : i % 3 == 1 ? 4000 + int64_t(rng() % 3)
                                 : begin + int64_t(rng() % 3000);
      int64_t bytes = rng() % 5 == 0 ? 0 : 4 + int64_t(rng() % (64 << (i % 9)));
      intervals.push_back({begin, std::max(begin, end), bytes});
    }
    Packing packing = pack(intervals);
    check(intervals, packing);
    EXPECT_EQ(packing.lowerBound, liveByBruteForce(intervals));
    EXPECT_LE(packing.peak, packing.lowerBound * 1.05);
  }
}

/// Forward takes, backward frees in the opposite order: as a training step
/// does.
TEST(Packing, Stack) {
  std::vector<Interval> intervals;
  for (int64_t i = 0; i < 48; ++i) {
    intervals.push_back({4 * i, 400 - 4 * i, 1000 + 64 * (i % 5)});
    intervals.push_back({4 * i + 1, 4 * i + 2, 3000});
    intervals.push_back({400 - 4 * i - 2, 400 - 4 * i - 1, 5000});
  }
  Packing packing = pack(intervals);
  check(intervals, packing);
  EXPECT_LE(packing.peak, packing.lowerBound * 1.02);
}
