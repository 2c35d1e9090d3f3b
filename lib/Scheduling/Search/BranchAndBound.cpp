//===- BranchAndBound.cpp - Optimal orders of small pipelines -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Branch and bound over active schedules (Giffler and Thompson, 1960). Of all
/// tasks that can be placed next, take one that ends first, and its position d.
/// In some optimal order, the next task of d begins before that end, because
/// otherwise the task fits in front of it. (An F that is moved forward saves
/// for longer; but with one stage at each position, the tasks that it passes
/// only free memory.) So only these tasks of d are branches. A state dominates
/// another one with the same tasks placed if none of its times is later.
///
//===----------------------------------------------------------------------===//

#include "BranchAndBound.h"
#include "llvm/ADT/STLExtras.h"
#include <map>

using namespace cleave::scheduling;

namespace {
class Brancher {
public:
  Brancher(const SchedulingProblem &problem, double best, int64_t steps);

  void branch();
  std::optional<TaskOrders> found;
  int64_t steps;

private:
  /// The earliest start of the next task of a kind at a position; `kNever` if
  /// it cannot be the next task.
  double earliestStart(int64_t d, Kind kind) const;
  /// A lower bound of the makespan of all orders that extend this state.
  double bound() const;
  bool isDominated();

  const SchedulingProblem &problem;
  int64_t p, m;
  double best;
  TaskOrders orders;
  std::vector<std::array<int64_t, 3>> count;
  std::vector<std::vector<double>> forward, backward;
  std::vector<double> free;
  std::map<std::vector<int64_t>, std::vector<std::vector<double>>> seen;
};
} // namespace

Brancher::Brancher(const SchedulingProblem &problem, double best, int64_t steps)
    : steps(steps), problem(problem), p(problem.stages),
      m(problem.microBatches), best(best), orders(p), count(p, {0, 0, 0}),
      forward(p), backward(p), free(p, 0) {}

double Brancher::earliestStart(int64_t s, Kind kind) const {
  auto [f, i, w] = count[s];
  double ready = 0;
  if (kind == F) {
    if (f == m || problem.saved[s] * (f - w + 1) > problem.limit[s] ||
        (s > 0 && count[s - 1][F] <= f))
      return kNever;
    if (s > 0)
      ready = forward[s - 1][f] + problem.forwardTransfer[s - 1];
  } else if (kind == W) {
    if (!problem.split || i == w)
      return kNever;
  } else {
    if (kind == (problem.split ? B : I) &&
        (!problem.split ||
         problem.cost[s][B] >= problem.cost[s][I] + problem.cost[s][W]))
      return kNever;
    if (i == f || (kind == B && i != w) || (s + 1 < p && count[s + 1][I] <= i))
      return kNever;
    if (s + 1 < p)
      ready = backward[s + 1][i] + problem.backwardTransfer[s + 1];
  }
  return std::max(ready, free[s]);
}

double Brancher::bound() const {
  double result = 0, up = 0;
  for (int64_t s = 0; s < p; ++s) {
    auto [f, i, w] = count[s];
    const auto &cost = problem.cost[s];
    double first = problem.split ? std::min(cost[I], cost[B]) : cost[B];
    double whole =
        problem.split ? std::min(cost[I] + cost[W], cost[B]) : cost[B];
    double start = free[s] + (m - f) * cost[F];
    result = std::max(result, start + (m - i) * whole + (i - w) * cost[W]);
    // The input gradients of earlier stages come after its last one.
    if (i < m)
      result = std::max(result, start + (m - i) * first + up);
    up += first;
    if (s > 0)
      up += problem.backwardTransfer[s];
  }
  return result;
}

/// Whether a known state dominates this one; otherwise adds this state.
bool Brancher::isDominated() {
  std::vector<int64_t> tasks;
  std::vector<double> times(free);
  for (int64_t s = 0; s < p; ++s) {
    tasks.insert(tasks.end(), count[s].begin(), count[s].end());
    if (s + 1 < p)
      for (int64_t k = count[s + 1][F]; k < count[s][F]; ++k)
        times.push_back(
            std::max(free[s + 1], forward[s][k] + problem.forwardTransfer[s]));
    if (s > 0)
      for (int64_t k = count[s - 1][I]; k < count[s][I]; ++k)
        times.push_back(std::max(free[s - 1],
                                 backward[s][k] + problem.backwardTransfer[s]));
  }
  auto &known = seen[tasks];
  auto notLater = [](const std::vector<double> &a,
                     const std::vector<double> &b) {
    for (auto [x, y] : llvm::zip_equal(a, b))
      if (x > y)
        return false;
    return true;
  };
  for (const std::vector<double> &other : known)
    if (notLater(other, times))
      return true;
  llvm::erase_if(known, [&](const std::vector<double> &other) {
    return notLater(times, other);
  });
  known.push_back(std::move(times));
  return false;
}

void Brancher::branch() {
  if (--steps < 0 || bound() >= best)
    return;
  int64_t device = -1;
  double firstEnd = kNever;
  for (int64_t s = 0; s < p; ++s)
    for (Kind kind : {F, I, W, B})
      if (double end = earliestStart(s, kind) + problem.cost[s][kind];
          end < firstEnd || (end == firstEnd && end < kNever && device < 0)) {
        firstEnd = end;
        device = s;
      }
  if (device < 0) {
    bool done =
        llvm::all_of(count, [&](const auto &number) { return number[W] == m; });
    double end = *std::max_element(free.begin(), free.end());
    if (done && end < best) {
      best = end;
      found = orders;
    }
    return;
  }
  if (isDominated())
    return;
  const auto cost = problem.cost[device];
  for (Kind kind : {I, B, F, W}) {
    double start = earliestStart(device, kind);
    // A task without duration may begin at that end.
    if (start == kNever || start > firstEnd ||
        (start == firstEnd && start + cost[kind] > firstEnd))
      continue;
    double before = free[device];
    free[device] = start + cost[kind];
    orders[device].push_back({kind, static_cast<int16_t>(device)});
    auto &number = count[device];
    auto &ends = kind == F ? forward[device] : backward[device];
    if (kind != W)
      ends.push_back(free[device]);
    ++number[kind == B ? I : kind];
    number[W] += kind == B;
    branch();
    number[W] -= kind == B;
    --number[kind == B ? I : kind];
    if (kind != W)
      ends.pop_back();
    orders[device].pop_back();
    free[device] = before;
  }
}

std::optional<TaskOrders>
cleave::scheduling::findOptimum(const SchedulingProblem &problem, double known,
                                int64_t steps, bool &proved) {
  proved = false;
  if (problem.stages != static_cast<int64_t>(problem.stagesAt.size()))
    return std::nullopt;
  for (auto [d, stages] : llvm::enumerate(problem.stagesAt))
    if (stages.size() != 1 || stages.front() != static_cast<int64_t>(d))
      return std::nullopt;
  Brancher brancher(problem, known, steps);
  brancher.branch();
  proved = brancher.steps >= 0;
  return brancher.found;
}
