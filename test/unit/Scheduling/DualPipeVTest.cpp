//===- DualPipeVTest.cpp - The bubble where two chunks overlap ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The formula of `dualpipe-v` is for positions that run a forward of one chunk
/// and the whole backward of the other behind it at once, in a time of their
/// own. So they do here; in the simulator each runs alone, and ends earlier.
///
//===----------------------------------------------------------------------===//

#include "Schedules.h"
#include <map>

using namespace cleave::scheduling;

namespace {

struct Overlapped {
  double makespan = 0, maxIdle = 0;
};

Overlapped run(const Made &made, double f, double i, double w, double both) {
  std::map<std::string, double> cost = {
      {"F", f}, {"I", i}, {"W", w}, {"B", i + w}, {"U", 0}};
  // When F and I of a stage and micro-batch have ended.
  std::map<std::tuple<bool, int64_t, int64_t>, double> end;
  int64_t p = made.map.devices, last = 2 * p - 1;
  std::vector<size_t> at(p, 0);
  std::vector<double> now(p, 0), first(p, -1), busy(p, 0);
  auto step = [&](int64_t d) {
    const std::vector<Action> &list = made.schedule.devices[d];
    if (at[d] == list.size())
      return false;
    const Action &next = list[at[d]];
    bool pair = next.part == "F" && at[d] + 1 < list.size() &&
                list[at[d] + 1].part == "B";
    double start = now[d];
    for (size_t k = at[d]; k <= at[d] + pair; ++k) {
      const Action &action = list[k];
      bool back = action.part == "I" || action.part == "B";
      if (!back && action.part != "F")
        continue;
      int64_t from = action.stage + (back ? 1 : -1);
      if (from < 0 || from > last)
        continue;
      auto it = end.find({back, from, action.microBatch});
      if (it == end.end())
        return false;
      start = std::max(start, it->second);
    }
    double time = pair ? both : cost[next.part];
    now[d] = start + time;
    busy[d] += time;
    if (first[d] < 0)
      first[d] = start;
    for (size_t k = at[d]; k <= at[d] + pair; ++k)
      end[{list[k].part != "F", list[k].stage, list[k].microBatch}] =
          list[k].part == "W" ? end[{true, list[k].stage, list[k].microBatch}]
                              : now[d];
    at[d] += 1 + pair;
    return true;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (int64_t d = 0; d < p; ++d)
      while (step(d))
        progress = true;
  }
  Overlapped result;
  for (int64_t d = 0; d < p; ++d) {
    EXPECT_EQ(at[d], made.schedule.devices[d].size());
    result.makespan = std::max(result.makespan, now[d]);
    result.maxIdle = std::max(result.maxIdle, now[d] - first[d] - busy[d]);
  }
  return result;
}

/// With 2p stages at p positions: (2p/2 - 1) (F&B + B - 3W), where F&B = F + B.
TEST(DualPipe, Bubble) {
  for (int64_t p = 1; p <= 16; p += testAll() ? 1 : 3)
    for (int64_t m : microBatchesOf(p)) {
      Made made("dualpipe-v", p, 2, m);
      for (auto [f, i, w] :
           {std::array{1, 1, 1}, {2, 2, 1}, {1, 2, 1}, {3, 3, 2}, {2, 3, 3}}) {
        int both = f + i + w;
        EXPECT_EQ(run(made, f, i, w, both).maxIdle,
                  (p - 1) * (both + (i + w) - 3 * w))
            << "p=" << p << " m=" << m << " F=" << f << " I=" << i
            << " W=" << w;
        // Where overlap gains something, there is less idle time still.
        EXPECT_LE(run(made, f, i, w, both - 1).maxIdle,
                  (p - 1) * (both - 1 + (i + w) - 3 * w));
      }
      EXPECT_EQ(largest(made.simulate(1, 1, 1).peakSaved), 2 * p + 1);
    }
}

} // namespace
