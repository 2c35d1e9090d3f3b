//===- GeneratorsTest.cpp - Known schedules, against their formulas -------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Schedules.h"
#include <functional>
#include <set>

using namespace cleave::scheduling;

namespace {

using Cost = std::array<int64_t, 3>;

/// Costs of F, I and W.
std::vector<Cost> costs(std::function<bool(int64_t, int64_t, int64_t)> keep) {
  std::vector<Cost> result;
  for (int64_t f = 1; f <= 3; ++f)
    for (int64_t i = 1; i <= 3; ++i)
      for (int64_t w = 1; w <= 3; ++w)
        if (keep(f, i, w) && (f + 2 * i + w) % 3 != 0)
          result.push_back({f, i, w});
  return result;
}

constexpr int64_t kSampleDevices[] = {1, 2, 3, 5, 8, 16};
std::vector<int64_t> devices() {
  if (!testAll())
    return {std::begin(kSampleDevices), std::end(kSampleDevices)};
  std::vector<int64_t> result;
  for (int64_t p = 1; p <= 16; ++p)
    result.push_back(p);
  return result;
}

TEST(Generators, AllAreValid) {
  for (const Generator &generator : generators())
    for (int64_t v : chunksOf(generator))
      for (int64_t p : devices())
        for (int64_t m : microBatchesOf(p, generator.chunks ? 1 : p)) {
          Made made(generator.name, p, v, m);
          EXPECT_EQ(made.verify().value_or("valid"), "valid")
              << generator.name.str() << " p=" << p << " m=" << m;
        }
}

TEST(Generators, FewMicroBatchesAreValid) {
  for (const Generator &generator : generators())
    for (int64_t p = 1; p <= 8; ++p)
      for (int64_t m = 1; m < 2 * p; ++m) {
        if (generator.name == "dualpipe-v" || (!generator.chunks && m % p))
          continue;
        Made made(generator.name, p, generator.chunks ? generator.chunks : 2,
                  m);
        EXPECT_EQ(made.verify().value_or("valid"), "valid")
            << generator.name.str() << " p=" << p << " m=" << m;
      }
}

TEST(Generators, WithWholeBackwards) {
  for (auto [f, i, w] : costs([](int64_t, int64_t, int64_t) { return true; }))
    for (int64_t p : devices())
      for (int64_t m : microBatchesOf(p)) {
        double expected = (m + p - 1) * (f + i + w);
        for (const char *name : {"gpipe", "1f1b", "pipedream"}) {
          Simulation sim = Made(name, p, 1, m).simulate(f, i, w);
          EXPECT_EQ(sim.makespan, expected);
          EXPECT_EQ(sim.maxIdle, (p - 1) * (f + i + w));
          EXPECT_EQ(sim.period, expected);
          for (int64_t r = 0; r < p; ++r)
            EXPECT_EQ(sim.peakInFlight[r],
                      name[0] == 'g' ? m : std::min(m, p - r));
        }
      }
}

TEST(Generators, Interleaved) {
  for (auto [f, i, w] : costs([](int64_t, int64_t, int64_t) { return true; }))
    for (int64_t p : devices())
      for (int64_t m : microBatchesOf(p, p))
        for (int64_t v : {2, 3, 4}) {
          Made made("interleaved", p, v, m);
          Simulation sim = made.simulate(f, i, w);
          // A chunk is a v-th of a position's work.
          EXPECT_EQ(sim.makespan, (m * v + p - 1) * (f + i + w));
          EXPECT_EQ(sim.maxIdle, (p - 1) * (f + i + w));
          for (int64_t r = 0; r < p; ++r) {
            const std::vector<Action> &actions = made.schedule.devices[r];
            auto it = std::find_if(
                actions.begin(), actions.end(),
                [](const Action &action) { return action.part == "B"; });
            int64_t warm = 2 * (p - r - 1) + (v - 1) * p;
            EXPECT_EQ(it - actions.begin(), std::min(warm + 1, m * v));
          }
          // The first stage's factor over 1f1b: 1 + (p-1)/(p v).
          EXPECT_EQ(sim.peakSaved[0],
                    std::min(m * v, 2 * (p - 1) + (v - 1) * p + 1));
        }
}

TEST(Generators, ZeroBubbleH1) {
  for (auto [f, i, w] :
       costs([](int64_t f, int64_t i, int64_t w) { return w <= f; }))
    for (int64_t p : devices())
      for (int64_t m : microBatchesOf(p)) {
        Simulation sim = Made("zb-h1", p, 1, m).simulate(f, i, w);
        EXPECT_EQ(sim.maxIdle, (p - 1) * (f + i - w));
        EXPECT_EQ(sim.makespan,
                  m * (f + i + w) + (p - 1) * std::max(f, f + i - w));
        EXPECT_EQ(sim.peakSaved, std::vector<int64_t>(p, p));
      }
}

TEST(Generators, ZeroBubbleH2) {
  for (auto [f, i, w] : costs([](int64_t f, int64_t i, int64_t w) {
         return w <= f && 2 * w <= f + i;
       }))
    for (int64_t p : devices())
      for (int64_t m : microBatchesOf(p)) {
        Simulation sim = Made("zb-h2", p, 1, m).simulate(f, i, w);
        EXPECT_EQ(sim.maxIdle, (p - 1) * (f + i - 2 * w));
        EXPECT_EQ(sim.makespan,
                  m * (f + i + w) + (p - 1) * std::max(f, f + i - 2 * w));
        EXPECT_EQ(sim.peakSaved, std::vector<int64_t>(p, 2 * p - 1));
      }
}

/// Chunks are half of a position's work, and of what it saves. What v-half and
/// v-min save, in micro-batches: (p + 2) / 2 and (p + 4) / 3, rounded down, as
/// their authors say of V-Half and V-Min (arXiv 2405.15362, the table of their
/// implementation). Of the time they give rates of about p / 2m and 2p / 3m, of
/// which these are the bounds.
TEST(Generators, VShaped) {
  for (int64_t p : devices())
    for (int64_t m : microBatchesOf(p)) {
      // The last position cannot begin before p-1: no order of this map is
      // faster, and each further micro-batch takes its work alone. It saves
      // what 1f1b does.
      Simulation sim = Made("zb-v", p, 2, m).simulate(1, 1, 1);
      EXPECT_EQ(sim.makespan, 6 * m + p - 1);
      EXPECT_EQ(sim.maxIdle, 0);
      EXPECT_EQ(largest(sim.peakSaved), 2 * p);

      sim = Made("v-half", p, 2, m).simulate(1, 1, 1);
      EXPECT_EQ(largest(sim.peakSaved), 2 * ((p + 2) / 2));
      EXPECT_GE(sim.makespan, 6 * m + p - 1);
      EXPECT_LE(sim.makespan, 6 * m + 3 * (p - 1));

      sim = Made("v-min", p, 2, m).simulate(1, 1, 1);
      EXPECT_EQ(largest(sim.peakSaved), 2 * ((p + 4) / 3));
      EXPECT_GE(sim.makespan, 6 * m + p - 1);
      EXPECT_LE(sim.makespan, 6 * m + 4 * (p - 1));

      sim = Made("dualpipe-v", p, 2, m).simulate(1, 1, 1);
      EXPECT_EQ(sim.makespan, 6 * m + p - 1);
      EXPECT_EQ(largest(sim.peakSaved), 2 * p + 1);
    }
}

/// As published: p = 8, m = 24, F = I = W = 1, in which 72 would be ideal.
TEST(Generators, Makespans) {
  auto makespan = [](const char *name, int64_t v) {
    return Made(name, 8, v, 24).simulate(1, 1, 1).makespan / v;
  };
  EXPECT_EQ(makespan("gpipe", 1), 93);
  EXPECT_EQ(makespan("1f1b", 1), 93);
  EXPECT_EQ(makespan("interleaved", 2), 82.5);
  EXPECT_EQ(makespan("interleaved", 4), 77.25);
  EXPECT_EQ(makespan("zb-h2", 1), 79);
  EXPECT_EQ(makespan("zb-v", 2), 75.5);
  Simulation sim = Made("zb-h2", 8, 1, 24).simulate(1, 1, 1);
  EXPECT_EQ(sim.maxIdle, 0);
  EXPECT_EQ(sim.period, 72);
  // p = 4, m = 8, F = B = 1.
  EXPECT_EQ(Made("gpipe", 4, 1, 8).simulate(1, 1, 0).makespan, 22);
  EXPECT_EQ(Made("1f1b", 4, 1, 8).simulate(1, 1, 0).makespan, 22);
}

TEST(Generators, PipeDream) {
  for (int64_t p : devices())
    for (int64_t m : microBatchesOf(p)) {
      Made made("pipedream", p, 1, m);
      Simulation sim = made.simulate(1, 1, 1);
      for (int64_t r = 0; r < p; ++r)
        EXPECT_EQ(sim.versions[r], p - r);
      VerifyOptions options;
      options.staleness = p - 1;
      EXPECT_FALSE(made.verify(options));
      options.staleness = p - 2;
      EXPECT_TRUE(made.verify(options));
    }
}

/// Within a bound, a position goes ahead by no more than that.
TEST(Generators, BoundedStaleness) {
  for (int64_t p : devices())
    for (int64_t m : microBatchesOf(p))
      for (int64_t bound = 0; bound < p + 1; ++bound) {
        Made made("pipedream", p, 1, m, bound);
        VerifyOptions options;
        options.staleness = bound;
        EXPECT_FALSE(made.verify(options));
        Simulation sim = made.simulate(1, 1, 1);
        for (int64_t r = 0; r < p; ++r) {
          int64_t late = std::min(bound, p - r - 1);
          EXPECT_EQ(sim.stages[r].staleness, late);
          EXPECT_EQ(sim.stages[r].versions, late + 1);
          EXPECT_EQ(sim.versions[r], late + 1);
        }
        // One micro-batch after another.
        if (bound == 0)
          EXPECT_EQ(sim.makespan, m * p * 3);
      }
}

/// Text of as many words for any number of micro-batches.
TEST(Generators, CompactText) {
  auto words = [](const std::string &text) {
    return std::count(text.begin(), text.end(), ' ');
  };
  for (const Generator &generator : generators())
    for (int64_t p : {4, 8, 16}) {
      int64_t v = chunksOf(generator).back();
      Schedule small = Made(generator.name, p, v, 64).schedule;
      Schedule large = Made(generator.name, p, v, 512).schedule;
      EXPECT_EQ(parseSchedule(small.compact()), small);
      EXPECT_EQ(parseSchedule(large.compact()), large);
      EXPECT_LE(words(large.compact()), words(small.compact()))
          << generator.name.str() << " p=" << p;
    }
}

TEST(Generators, Errors) {
  auto why = [](const char *name, int64_t p, int64_t v, int64_t m) {
    std::string error = "none";
    EXPECT_FALSE(generateSchedule(name, {p, v, m}, error));
    return error;
  };
  EXPECT_EQ(
      why("interleaved", 4, 2, 6),
      "interleaved: 6 micro-batches are not divisible by 4 pipeline positions; "
      "change the number of micro-batches, or choose another schedule");
  EXPECT_EQ(why("interleaved", 4, 1, 8),
            "interleaved needs at least 2 stages at each pipeline position, "
            "got 1; change the number of chunks, or choose another schedule");
  EXPECT_EQ(why("zb-v", 4, 1, 8),
            "zb-v needs 2 stages at each pipeline position, got 1; change the "
            "number of chunks, or choose another schedule");
  EXPECT_EQ(why("dualpipe-v", 4, 2, 7),
            "dualpipe-v: 7 micro-batches are too few for 4 pipeline positions; "
            "give at least 8");
  EXPECT_EQ(why("1f1b", 0, 1, 1), "1f1b: the numbers of pipeline positions, "
                                  "chunks and micro-batches must be positive");
  EXPECT_NE(why("1f1b", 4000, 1, 60000).find("give fewer"), std::string::npos);
  EXPECT_EQ(why("spiral", 1, 1, 1),
            "unknown schedule 'spiral'; write one of gpipe, 1f1b, interleaved, "
            "zb-h1, zb-h2, zb-v, v-half, v-min, dualpipe-v, pipedream, or "
            "auto, which searches for the fastest");
  std::set<std::string> names;
  for (const Generator &generator : generators()) {
    EXPECT_TRUE(names.insert(generator.name.str()).second);
    EXPECT_FALSE(generator.description.empty());
  }
}

} // namespace
