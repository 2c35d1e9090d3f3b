//===- OrderTiming.cpp - Start and end times of orders --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "OrderTiming.h"

using namespace cleave::scheduling;

OrderTiming::OrderTiming(const SchedulingProblem &problem)
    : problem(problem), m(problem.microBatches), forward(problem.stages * m),
      backward(problem.stages * m), free(problem.stagesAt.size()),
      forwardAt(problem.stages * m), backwardAt(problem.stages * m),
      count(problem.stages), at(problem.stagesAt.size()),
      waited(problem.stagesAt.size()) {}

/// Gives position `d` its next task; false if the task cannot run yet.
bool OrderTiming::place(const TaskOrders &orders, int d) {
  auto [kind, s] = orders[d][at[d]];
  auto &[f, i, w] = count[s];
  double ready = -1;
  Place from{-1, 0};
  if (kind == F) {
    if (s > 0) {
      if (count[s - 1][F] <= f)
        return false;
      ready = forward[(s - 1) * m + f] + problem.forwardTransfer[s - 1];
      from = forwardAt[(s - 1) * m + f];
    }
  } else if (kind == W) {
    if (i <= w)
      return false;
  } else {
    if (f <= i || (kind == B && w != i))
      return false;
    if (s + 1 < problem.stages) {
      if (count[s + 1][I] <= i)
        return false;
      ready = backward[(s + 1) * m + i] + problem.backwardTransfer[s + 1];
      from = backwardAt[(s + 1) * m + i];
    }
  }
  if (ready > free[d])
    free[d] = ready;
  else
    from.device = -1;
  waited[d][at[d]] = from;
  free[d] += problem.cost[s][kind];
  if (free[d] > last) {
    last = free[d];
    lastAt = {d, at[d]};
  }
  if (kind == F) {
    forwardAt[s * m + f] = {d, at[d]};
    forward[s * m + f++] = free[d];
  } else if (kind != W) {
    backwardAt[s * m + i] = {d, at[d]};
    backward[s * m + i++] = free[d];
  }
  if (kind == W || kind == B)
    ++w;
  ++at[d];
  return true;
}

double OrderTiming::run(const TaskOrders &orders) {
  int devices = orders.size();
  for (auto &number : count)
    number = {0, 0, 0};
  for (int d = 0; d < devices; ++d) {
    at[d] = 0;
    free[d] = 0;
    waited[d].resize(orders[d].size());
  }
  last = 0;
  lastAt = {0, -1};
  auto advance = [&](int d) {
    bool moved = false;
    while (at[d] < static_cast<int>(orders[d].size()) && place(orders, d))
      moved = true;
    return moved;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (int d = 0; d < devices; ++d)
      progress |= advance(d);
    for (int d = devices; d-- > 0;)
      progress |= advance(d);
  }
  for (int d = 0; d < devices; ++d)
    if (at[d] < static_cast<int>(orders[d].size()))
      return kNever;
  return last;
}

void OrderTiming::criticalPairs(const TaskOrders &orders,
                                std::vector<std::pair<int, int>> &pairs) const {
  pairs.clear();
  Place here = lastAt;
  while (here.index >= 0) {
    Place from = waited[here.device][here.index];
    if (from.device >= 0) {
      here = from;
      continue;
    }
    if (here.index > 0)
      pairs.push_back({here.device, here.index});
    --here.index;
  }
}
