//===- ZeroBubbleV.cpp - Schedules of two chunks in the shape of a V ------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// ZB-V, V-Half and V-Min. Position r holds stage r (the near chunk) and stage
/// 2p-1-r (the far chunk), so that stages go down the positions and up again.
///
/// V-Half and V-Min repeat a building block, the tasks of one micro-batch on
/// all positions, once each interval: Qi et al., "Pipeline Parallelism with
/// Controllable Memory", arXiv 2405.15362. How far the tasks of neighbouring
/// positions are staggered in the block decides what is saved.
///
//===----------------------------------------------------------------------===//

#include "../SchedulingProblem.h"
#include "GeneratorList.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave::scheduling;

namespace {
/// The tasks of one micro-batch at each position, with their start times where
/// F = I = W = 1. Each next micro-batch starts `kInterval` later.
using BuildingBlock = std::vector<std::vector<std::pair<int64_t, StageTask>>>;

/// The time between a task and the same task at the next position that runs
/// it: for F of the near chunk, F of the far chunk, I of the far chunk and I of
/// the near chunk.
using Stagger = std::array<int64_t, 4>;
/// The time between the last of these tasks of one kind and the first of the
/// next kind, at the same position.
using TurnDelays = std::array<int64_t, 3>;

/// The work of one micro-batch at a position, where F = I = W = 1.
constexpr int64_t kInterval = 6;
} // namespace

static bool isTaken(llvm::ArrayRef<std::pair<int64_t, StageTask>> line,
                    int64_t time) {
  return llvm::any_of(line, [&](const auto &entry) {
    return (entry.first - time) % kInterval == 0;
  });
}

/// Builds the block of `p` positions; W takes the first free time after its I.
/// Empty if tasks of different micro-batches collide.
static BuildingBlock makeBlock(int64_t p, const Stagger &stagger,
                               const TurnDelays &delay) {
  int64_t last = p - 1;
  int64_t first = last * stagger[0] + delay[0];
  int64_t second = first + last * stagger[1] + delay[1];
  int64_t third = second + last * stagger[2] + delay[2];
  BuildingBlock block;
  for (int64_t r = 0; r < p; ++r) {
    int16_t near = r, far = 2 * p - 1 - r;
    auto &line = block.emplace_back();
    for (auto [time, task] :
         std::initializer_list<std::pair<int64_t, StageTask>>{
             {r * stagger[0], {F, near}},
             {first + (last - r) * stagger[1], {F, far}},
             {second + r * stagger[2], {I, far}},
             {third + (last - r) * stagger[3], {I, near}}}) {
      if (isTaken(line, time))
        return {};
      line.push_back({time, task});
    }
    for (int i : {2, 3}) {
      int64_t time = line[i].first + 1;
      while (isTaken(line, time))
        ++time;
      line.push_back({time, {W, line[i].second.stage}});
    }
  }
  return block;
}

/// The order of tasks when the block is repeated for each micro-batch.
static TaskOrders repeatBlock(const BuildingBlock &block,
                              int64_t microBatches) {
  TaskOrders orders;
  for (const auto &line : block) {
    std::vector<std::pair<int64_t, StageTask>> all;
    for (int64_t k = 0; k < microBatches; ++k)
      for (auto [time, task] : line)
        all.push_back({time + k * kInterval, task});
    llvm::sort(all,
               [](const auto &a, const auto &b) { return a.first < b.first; });
    TaskOrder &order = orders.emplace_back();
    for (auto [time, task] : all)
      order.push_back(task);
  }
  return orders;
}

/// The most forwards that a position saves at a time.
static int64_t peakSaved(const TaskOrders &orders) {
  int64_t peak = 0;
  for (const TaskOrder &order : orders) {
    int64_t saved = 0;
    for (StageTask task : order) {
      saved += task.kind == F ? 1 : task.kind == W ? -1 : 0;
      peak = std::max(peak, saved);
    }
  }
  return peak;
}

/// Keeps the block's order of F and I, and delays W to fill the gaps of warm-up
/// and cool-down, without saving more than in the block's order.
static TaskOrders fillGaps(SchedulingProblem &problem,
                           const TaskOrders &orders) {
  problem.limit.assign(problem.stagesAt.size(), peakSaved(orders));
  Policy policy;
  policy.fixedOrder = &orders;
  TaskOrders filled = chooseGreedily(problem, policy);
  return filled.empty() || problem.evaluate(orders) < problem.evaluate(filled)
             ? orders
             : filled;
}

/// Repeats the block that saves least, and of these the fastest one, over all
/// turn delays for which no tasks collide. Whether they do depends on p modulo
/// the interval alone, so the delays are chosen for few positions.
static Schedule makeFromBlock(const PipelineSize &size,
                              llvm::ArrayRef<Stagger> staggers) {
  int64_t p = size.devices;
  int64_t small = p <= 3 * kInterval ? p : 2 * kInterval + p % kInterval;
  // As many micro-batches as can be in flight show the steady state.
  int64_t few = std::min(size.microBatches, 2 * small + 2);
  SchedulingProblem sample({StageMap::Kind::V, small}, 2 * small, few);
  std::pair<Stagger, TurnDelays> best;
  int64_t bestSaved = std::numeric_limits<int64_t>::max();
  double bestTime = kNever;
  for (const Stagger &stagger : staggers)
    for (int64_t i = 0; i < kInterval * kInterval * kInterval; ++i) {
      TurnDelays delays = {1 + i % kInterval, 1 + i / kInterval % kInterval,
                           1 + i / kInterval / kInterval};
      BuildingBlock block = makeBlock(small, stagger, delays);
      if (block.empty())
        continue;
      TaskOrders orders = repeatBlock(block, few);
      int64_t saved = peakSaved(orders);
      if (saved > bestSaved)
        continue;
      double time = sample.evaluate(fillGaps(sample, orders));
      if (saved < bestSaved || time < bestTime) {
        best = {stagger, delays};
        bestSaved = saved;
        bestTime = time;
      }
    }
  SchedulingProblem problem({StageMap::Kind::V, p}, 2 * p, size.microBatches);
  BuildingBlock block = makeBlock(p, best.first, best.second);
  return problem.toSchedule(
      fillGaps(problem, repeatBlock(block, size.microBatches)),
      /*update=*/true);
}

/// The order of position `r`, for m >= 2p-1; where F = I = W, the position is
/// never idle between its first and its last task. The warm-up has near
/// forwards until the first far one can run; the steady state has rounds of
/// both chunks; in the cool-down, input gradients that other positions wait for
/// come first, and weight gradients fill the gaps.
static TaskOrder zeroBubbleOrder(int64_t p, int64_t r, int64_t m) {
  TaskOrder order;
  const int16_t near = r, far = 2 * p - 1 - r;
  auto repeat = [&](int64_t times, llvm::ArrayRef<StageTask> tasks) {
    for (int64_t i = 0; i < times; ++i)
      order.insert(order.end(), tasks.begin(), tasks.end());
  };
  repeat(2 * (p - r) - 1, {{F, near}});
  repeat(r, {{F, far}, {F, near}});
  repeat(p - r, {{F, far}, {I, far}, {W, far}});
  repeat(m - (2 * p - 1 - r),
         {{F, near}, {I, near}, {W, near}, {F, far}, {I, far}, {W, far}});
  repeat(p - r - 1, {{I, near}, {W, near}, {F, far}, {I, far}, {W, far}});
  repeat(r, {{I, near}, {I, far}});
  repeat(p - r, {{I, near}, {W, near}});
  repeat(r, {{W, far}});
  repeat(r, {{W, near}});
  return order;
}

/// ZB-V. Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241,
/// section 6. With fewer than 2p-1 micro-batches, its building block.
///
/// Timeline for p = 3, m = 5, F = I = W = U = 1 (the far chunk in small
/// letters, a dot is one idle unit):
///
///   0  F0F1F2F3F4f0i0w0f1i1w1f2i2w2I0W0f3i3w3I1W1f4i4w4I2W2I3W3I4W4U u
///   1  . F0F1F2f0F3f1i0w0f2i1w1F4I0W0f3i2w2I1W1f4i3w3I2i4I3W2I4W3w4W4U u
///   2  . . F0f0F1f1F2f2i0w0F3I0W0f3i1w1F4I1W1f4i2w2I2i3I3i4I4W2w3w4W3W4U u
///
Generated cleave::scheduling::makeZeroBubbleV(const PipelineSize &size,
                                              std::string &) {
  int64_t p = size.devices, m = size.microBatches;
  if (m < 2 * p - 1)
    return makeFromBlock(size, {{3, 3, 3, 3}});
  TaskOrders orders;
  for (int64_t r = 0; r < p; ++r)
    orders.push_back(zeroBubbleOrder(p, r, m));
  return SchedulingProblem({StageMap::Kind::V, p}, 2 * p, m)
      .toSchedule(orders, /*update=*/true);
}

// A position saves, of each chunk, as many micro-batches as intervals lie
// between its F and its W. Both chunks together: about (p-1) / kInterval times
// the sum of the four staggers, and a constant.

/// V-Half, with half of the activation memory of 1F1B (see the top of this
/// file). Timeline for p = 3, m = 4, F = I = W = U = 1 (the far chunk in small
/// letters, a dot is one idle unit):
///
///   0  F0F1. . . f0i0F2w0f1i1w1I0F3W0f2i2w2I1W1. f3i3I2W2w3. I3W3U u
///   1  . F0. . f0F1. i0f1w0F2I0i1W0f2w1F3I1i2W1f3w2I2i3W2w3I3W3U u
///   2  . . F0f0. . F1f1i0I0W0F2w0f2i1I1W1F3w1f3i2I2W2w2i3I3W3w3U u
///
Generated cleave::scheduling::makeVHalf(const PipelineSize &size,
                                        std::string &) {
  return makeFromBlock(size, {{1, 2, 1, 2}, {2, 1, 2, 1}});
}

/// V-Min, with a third of the activation memory of 1F1B. Timeline as for
/// V-Half:
///
///   0  F0F1. . . f0i0F2w0. . f1i1I0W0F3w1f2i2I1W1w2. f3i3I2W2w3. I3W3U u
///   1  . F0. . f0F1. i0w0. f1F2I0i1W0w1f2F3I1i2W1w2f3I2W2i3w3. I3W3U u
///   2  . . F0f0. . F1. i0f1I0W0F2w0i1f2I1W1F3w1i2f3I2W2w2. i3I3W3w3U u
///
Generated cleave::scheduling::makeVMin(const PipelineSize &size,
                                       std::string &) {
  return makeFromBlock(size, {{1, 1, 1, 1}});
}
