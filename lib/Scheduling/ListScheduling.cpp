//===- ListScheduling.cpp - Orders made by list scheduling ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "SchedulingProblem.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave::scheduling;

namespace {
class ListScheduler {
public:
  ListScheduler(const SchedulingProblem &problem, const Policy &policy);
  TaskOrders run();

private:
  struct Choice {
    double start = kNever;
    double rank = 0;
    StageTask task = {};
  };
  /// The best next task of a position other than W. Sets `blocked` if an F is
  /// ready that the limit does not allow.
  Choice choose(size_t device, bool &blocked) const;
  bool step();
  void place(size_t device, StageTask task, double start);
  void skipWeights(size_t device, size_t from);
  double readyForward(int64_t s) const;
  double readyBackward(int64_t s) const;
  bool hasRoom(size_t device, int64_t stage) const;

  const SchedulingProblem &problem;
  const Policy &policy;
  int64_t m;
  std::vector<double> forward, backward;
  std::vector<std::array<int64_t, 3>> count;
  std::vector<double> free;
  std::vector<int64_t> held;
  /// The index of each position in the fixed order.
  std::vector<size_t> at;
  /// For each stage, the amount that one micro-batch saves in the later stages
  /// at its position.
  std::vector<int64_t> reserve;
  TaskOrders orders;
};
} // namespace

ListScheduler::ListScheduler(const SchedulingProblem &problem,
                             const Policy &policy)
    : problem(problem), policy(policy), m(problem.microBatches),
      forward(problem.stages * m), backward(problem.stages * m),
      count(problem.stages, {0, 0, 0}), free(problem.stagesAt.size(), 0),
      held(problem.stagesAt.size(), 0), at(problem.stagesAt.size(), 0),
      reserve(problem.stages, 0), orders(problem.stagesAt.size()) {
  if (policy.fixedOrder)
    return; // A fixed order is already known to make progress.
  for (const std::vector<int16_t> &stages : problem.stagesAt) {
    int64_t sum = 0;
    for (int16_t s : llvm::reverse(stages)) {
      reserve[s] = sum;
      sum += problem.saved[s];
    }
  }
}

double ListScheduler::readyForward(int64_t s) const {
  int64_t k = count[s][F];
  if (k == m || (s > 0 && count[s - 1][F] <= k))
    return kNever;
  return s > 0 ? forward[(s - 1) * m + k] + problem.forwardTransfer[s - 1] : 0;
}

double ListScheduler::readyBackward(int64_t s) const {
  int64_t k = count[s][I];
  if (count[s][F] <= k || (s + 1 < problem.stages && count[s + 1][I] <= k))
    return kNever;
  return s + 1 < problem.stages
             ? backward[(s + 1) * m + k] + problem.backwardTransfer[s + 1]
             : 0;
}

/// Whether the limit allows an F of this stage. Room is reserved for what one
/// micro-batch saves in later stages at the position, so that the oldest
/// micro-batch in flight can always make progress.
bool ListScheduler::hasRoom(size_t device, int64_t s) const {
  return problem.saved[s] + reserve[s] <= problem.limit[device] - held[device];
}

ListScheduler::Choice ListScheduler::choose(size_t device,
                                            bool &blocked) const {
  Choice best;
  auto offer = [&](double ready, double rank, StageTask task) {
    double start = std::max(ready, free[device]);
    if (start < best.start || (start == best.start && rank < best.rank))
      best = {start, rank, task};
  };
  if (policy.fixedOrder) {
    if (at[device] == (*policy.fixedOrder)[device].size())
      return best;
    StageTask task = (*policy.fixedOrder)[device][at[device]];
    if (task.kind == I)
      offer(readyBackward(task.stage), 0, task);
    else if (hasRoom(device, task.stage))
      offer(readyForward(task.stage), 0, task);
    else
      blocked = true;
    return best;
  }
  for (int16_t s : problem.stagesAt[device]) {
    double depth = static_cast<double>(s) / problem.stages / 4;
    if (double ready = readyBackward(s); ready < kNever)
      offer(ready, policy.rank[I] - policy.lateBackward * depth,
            {policy.wholeBackward ? B : I, s});
    double ready = readyForward(s);
    if (ready == kNever)
      continue;
    if (!policy.maxInFlight.empty() &&
        count[s][F] - count[s][I] >= policy.maxInFlight[s])
      continue;
    if (hasRoom(device, s))
      offer(ready, policy.rank[F] - policy.lateForward * depth, {F, s});
    else if (ready <= free[device])
      blocked = true;
  }
  return best;
}

void ListScheduler::skipWeights(size_t device, size_t from) {
  const TaskOrder &order = (*policy.fixedOrder)[device];
  while (from < order.size() && order[from].kind == W)
    ++from;
  at[device] = from;
}

void ListScheduler::place(size_t device, StageTask task, double start) {
  auto [kind, s] = task;
  if (policy.fixedOrder && kind != W)
    skipWeights(device, at[device] + 1);
  free[device] = start + problem.cost[s][kind];
  orders[device].push_back(task);
  if (kind == F) {
    forward[s * m + count[s][F]++] = free[device];
    held[device] += problem.saved[s];
    return;
  }
  if (kind != W)
    backward[s * m + count[s][I]++] = free[device];
  if (kind != I) {
    ++count[s][W];
    held[device] -= problem.saved[s];
  }
}

/// Places one task, at the position that can start one first.
bool ListScheduler::step() {
  Choice first;
  size_t actor = 0;
  for (size_t d = 0; d < orders.size(); ++d) {
    bool blocked = false;
    Choice choice = choose(d, blocked);
    // The W that is furthest behind.
    int16_t stage = -1;
    for (int16_t s : problem.stagesAt[d])
      if (count[s][I] > count[s][W] &&
          (stage < 0 || count[s][W] < count[stage][W]))
        stage = s;
    if (stage >= 0 && choice.start > free[d]) {
      double end = free[d] + problem.cost[stage][W];
      if (!policy.delayWeights || blocked || end <= choice.start)
        choice = {free[d], 2, {W, stage}};
    }
    if (choice.start < first.start) {
      first = choice;
      actor = d;
    }
  }
  if (first.start == kNever)
    return false;
  place(actor, first.task, first.start);
  return true;
}

TaskOrders ListScheduler::run() {
  for (auto [d, stages] : llvm::enumerate(problem.stagesAt)) {
    int64_t least = 0;
    for (int16_t s : stages)
      least += problem.saved[s];
    if (least > problem.limit[d])
      return {};
  }
  if (policy.fixedOrder)
    for (size_t d = 0; d < orders.size(); ++d)
      skipWeights(d, 0);
  while (step())
    ;
  for (const auto &number : count)
    if (number[W] < m)
      return {};
  return std::move(orders);
}

TaskOrders cleave::scheduling::chooseGreedily(const SchedulingProblem &problem,
                                              const Policy &policy) {
  return ListScheduler(problem, policy).run();
}
