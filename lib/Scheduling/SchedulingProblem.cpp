//===- SchedulingProblem.cpp - A pipeline whose stages form a chain -------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "SchedulingProblem.h"
#include "OrderTiming.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave::scheduling;

SchedulingProblem::SchedulingProblem(const StageMap &map, int64_t stages,
                                     int64_t microBatches)
    : map(map), stages(stages), microBatches(microBatches),
      cost(stages, {1, 1, 1, 2}), forwardTransfer(stages, 0),
      backwardTransfer(stages, 0), saved(stages, 1),
      limit(map.devices, std::numeric_limits<int64_t>::max()),
      stagesAt(map.devices) {
  for (int64_t s = 0; s < stages; ++s)
    stagesAt[map.device(s)].push_back(s);
}

bool SchedulingProblem::isLegal(const TaskOrder &order, int64_t device) const {
  llvm::SmallVector<std::array<int, 3>, 8> count(stages, {0, 0, 0});
  int64_t held = 0;
  for (auto [kind, s] : order) {
    auto &[f, i, w] = count[s];
    if (kind == F) {
      ++f;
      if ((held += saved[s]) > limit[device])
        return false;
      continue;
    }
    if (kind == B && i != w)
      return false;
    if (kind != W && ++i > f)
      return false;
    if (kind != I) {
      if (++w > i)
        return false;
      held -= saved[s];
    }
  }
  return true;
}

double SchedulingProblem::evaluate(const TaskOrders &orders) const {
  for (auto [d, order] : llvm::enumerate(orders))
    if (!isLegal(order, d))
      return kNever;
  return OrderTiming(*this).run(orders);
}

double SchedulingProblem::lowerBound() const {
  // A position begins after the forwards of all stages before its first one.
  // After its work follow at least the backwards of these stages.
  std::vector<double> down(stages, 0), up(stages, 0);
  for (int64_t s = 1; s < stages; ++s) {
    down[s] = down[s - 1] + cost[s - 1][F] + forwardTransfer[s - 1];
    up[s] = up[s - 1] + cost[s - 1][I] + backwardTransfer[s];
  }
  double bound = 0;
  for (auto [d, stagesOfPosition] : llvm::enumerate(stagesAt)) {
    double work = 0, before = kNever, after = kNever;
    for (int64_t s : stagesOfPosition) {
      double both = cost[s][I] + cost[s][W];
      work += cost[s][F] + (split ? std::min(both, cost[s][B]) : cost[s][B]);
      before = std::min(before, down[s]);
      // If its last task is a W, no other position has to run after it.
      after = std::min(after, split ? 0 : up[s]);
    }
    bound = std::max(bound, before + work * microBatches + after);
  }
  return bound;
}

static const char *const kParts[] = {"F", "I", "W", "B"};

Schedule SchedulingProblem::toSchedule(const TaskOrders &orders,
                                       bool update) const {
  Schedule schedule;
  schedule.devices.clear();
  for (auto [d, order] : llvm::enumerate(orders)) {
    std::vector<Action> &actions = schedule.devices.emplace_back();
    std::vector<std::array<int64_t, 3>> count(stages, {0, 0, 0});
    for (StageTask task : order) {
      auto &number = count[task.stage];
      int64_t k = number[task.kind == B ? I : task.kind]++;
      if (task.kind == B)
        ++number[W];
      actions.push_back({kParts[task.kind], k, task.stage});
    }
    if (update)
      for (int64_t s : stagesAt[d])
        actions.push_back({"U", -1, s});
  }
  return schedule;
}

std::optional<TaskOrders>
SchedulingProblem::toTaskOrders(const Schedule &schedule) const {
  TaskOrders orders;
  for (const std::vector<Action> &actions : schedule.devices) {
    TaskOrder &order = orders.emplace_back();
    for (const Action &action : actions) {
      const auto *it = llvm::find(kParts, action.part);
      if (it != std::end(kParts))
        order.push_back({static_cast<Kind>(it - std::begin(kParts)),
                         static_cast<int16_t>(action.stage)});
    }
  }
  // The conversion is exact only if micro-batches come in order.
  Schedule again = toSchedule(orders, false);
  for (auto [d, actions] : llvm::enumerate(schedule.devices)) {
    size_t next = 0;
    for (const Action &action : actions)
      if (llvm::is_contained(kParts, action.part) &&
          !(again.devices[d][next++] == action))
        return std::nullopt;
  }
  return orders;
}
