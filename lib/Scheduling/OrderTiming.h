//===- OrderTiming.h - Start and end times of orders ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_SCHEDULING_ORDERTIMING_H
#define CLEAVE_LIB_SCHEDULING_ORDERTIMING_H

#include "SchedulingProblem.h"

namespace cleave::scheduling {

/// Computes the start and end times of the tasks of given orders.
class OrderTiming {
public:
  explicit OrderTiming(const SchedulingProblem &problem);

  /// Returns the end of the last task, or `kNever` if the orders deadlock. Does
  /// not check limits.
  double run(const TaskOrders &orders);

  /// Collects the pairs of neighbouring tasks of a position on the critical
  /// path of the last `run`, of which the second waits for the first: the
  /// position, and the index of the second task.
  void criticalPairs(const TaskOrders &orders,
                     std::vector<std::pair<int, int>> &pairs) const;

private:
  struct Place {
    int device, index;
  };
  bool place(const TaskOrders &orders, int device);

  const SchedulingProblem &problem;
  int64_t m;
  std::vector<double> forward, backward, free;
  std::vector<Place> forwardAt, backwardAt;
  std::vector<std::array<int64_t, 3>> count;
  std::vector<int> at;
  /// For each task, the task at another position that it waited for; `device`
  /// is -1 if it waited for its own position.
  std::vector<std::vector<Place>> waited;
  double last = 0;
  Place lastAt = {0, -1};
};

} // namespace cleave::scheduling

#endif // CLEAVE_LIB_SCHEDULING_ORDERTIMING_H
