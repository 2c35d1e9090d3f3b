//===- LocalSearch.cpp - Local search on orders ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "LocalSearch.h"
#include "../OrderTiming.h"
#include <cmath>
#include <random>

using namespace cleave::scheduling;

namespace {
class Annealer {
public:
  Annealer(const SchedulingProblem &problem, TaskOrders orders)
      : problem(problem), timing(problem), current(std::move(orders)) {}

  TaskOrders run(int64_t tries);

private:
  /// Moves a task within its position; false if the order would not be legal.
  bool move(int device, int from, int to);

  const SchedulingProblem &problem;
  OrderTiming timing;
  TaskOrders current;
  std::mt19937 random{1};
};
} // namespace

static TaskOrder moved(TaskOrder order, int from, int to) {
  if (from < to)
    std::rotate(order.begin() + from, order.begin() + from + 1,
                order.begin() + to + 1);
  else
    std::rotate(order.begin() + to, order.begin() + from,
                order.begin() + from + 1);
  return order;
}

bool Annealer::move(int device, int from, int to) {
  TaskOrder next = moved(current[device], from, to);
  if (!problem.isLegal(next, device))
    return false;
  current[device].swap(next);
  return true;
}

TaskOrders Annealer::run(int64_t tries) {
  double value = timing.run(current), best = value;
  TaskOrders bestOrders = current;
  double bound = problem.lowerBound();
  std::vector<std::pair<int, int>> pairs;
  timing.criticalPairs(current, pairs);
  // Slower orders are accepted with a probability that falls to 0.
  double initialTemperature = 0.02 * value;
  for (int64_t k = 0; k < tries && best > bound && !pairs.empty(); ++k) {
    double temperature =
        initialTemperature * (1 - static_cast<double>(k) / tries);
    auto [d, i] = pairs[random() % pairs.size()];
    int size = current[d].size(), to = i - 1, from = i;
    switch (random() % 4) {
    case 0: // Move the second task of the pair to an earlier place.
      to = std::max<int>(0, i - 1 - random() % 8);
      break;
    case 1: // Move the first task of the pair to a later place.
      from = i - 1;
      to = std::min<int>(size - 1, i + random() % (random() % 2 ? 8 : size));
      break;
    default:
      break;
    }
    if (current[d][from] == current[d][to] || !move(d, from, to))
      continue;
    double next = timing.run(current);
    double worse = next - value;
    bool accepted = worse <= 0 ||
                    (worse < kNever && temperature > 0 &&
                     std::exp(-worse / temperature) * 4294967296.0 > random());
    if (!accepted) {
      current[d] = moved(std::move(current[d]), to, from);
      continue;
    }
    value = next;
    timing.criticalPairs(current, pairs);
    if (value < best) {
      best = value;
      bestOrders = current;
    }
  }
  return bestOrders;
}

TaskOrders cleave::scheduling::improve(const SchedulingProblem &problem,
                                       TaskOrders orders, int64_t tries) {
  return Annealer(problem, std::move(orders)).run(tries);
}
