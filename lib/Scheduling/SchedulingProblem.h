//===- SchedulingProblem.h - A pipeline of chained stages -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The scheduling problem of generators and the search: forward F, the two
/// halves I and W of backward, and whole backward B, of stages that form a
/// chain. Micro-batches are alike, so each part of a stage can run them in
/// order, and an order of tasks needs no micro-batches. (Given any order, let
/// the k-th run of a part in a stage run micro-batch k: whenever k of its runs
/// have begun, k runs of each part that it reads have ended, so no task starts
/// later, and as much is saved.)
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_SCHEDULING_SCHEDULINGPROBLEM_H
#define CLEAVE_LIB_SCHEDULING_SCHEDULINGPROBLEM_H

#include "cleave/Scheduling/Schedule.h"
#include "cleave/Scheduling/StageMap.h"
#include <array>
#include <limits>

namespace cleave::scheduling {

/// The parts of a stage.
enum Kind : unsigned char { F, I, W, B };

/// A task of an order, without its micro-batch.
struct StageTask {
  Kind kind;
  int16_t stage;
  bool operator==(const StageTask &other) const = default;
};
/// The tasks of one position, in order.
using TaskOrder = std::vector<StageTask>;
/// The orders of all positions.
using TaskOrders = std::vector<TaskOrder>;

inline constexpr double kNever = std::numeric_limits<double>::infinity();

struct SchedulingProblem {
  SchedulingProblem(const StageMap &map, int64_t stages, int64_t microBatches);

  StageMap map;
  int64_t stages, microBatches;
  /// For each stage, the costs of F, I, W and B.
  std::vector<std::array<double, 4>> cost;
  /// For each stage, the cost of a transfer of the results of its F to the next
  /// stage, and of its I (or B) to the previous one; 0 within a position.
  std::vector<double> forwardTransfer, backwardTransfer;
  /// For each stage, the amount that an F saves until its W or B.
  std::vector<int64_t> saved;
  /// The most that each position may have saved at a time.
  std::vector<int64_t> limit;
  /// Whether backward may be split.
  bool split = true;
  /// The stages at each position.
  std::vector<std::vector<int16_t>> stagesAt;

  /// Returns the end of the last task, or `kNever` if the orders deadlock or
  /// exceed a limit.
  double evaluate(const TaskOrders &orders) const;
  /// Whether the order of a position has F before I before W in each stage, and
  /// keeps the limit.
  bool isLegal(const TaskOrder &order, int64_t device) const;
  /// A lower bound of the makespan of all orders.
  double lowerBound() const;

  /// Returns the orders as a schedule; with `update`, a U of each stage
  /// follows.
  Schedule toSchedule(const TaskOrders &orders, bool update) const;
  /// Returns the orders of a schedule of these parts; nothing if it does not
  /// run each part in the order of micro-batches.
  std::optional<TaskOrders> toTaskOrders(const Schedule &schedule) const;
};

/// How list scheduling chooses the next task of an idle position.
struct Policy {
  /// Ranks of F and I. Of the tasks that can start first, the one with the
  /// least rank is chosen.
  std::array<double, 2> rank = {1, 0};
  /// Preference among the stages at a position: late ones (1) or early ones
  /// (-1).
  double lateForward = 1, lateBackward = -1;
  /// W runs when no other task can. If set, it runs only if it ends before the
  /// next F or I is ready, or if an F waits for the memory that it frees.
  bool delayWeights = false;
  /// Whether B runs in place of I and W.
  bool wholeBackward = false;
  /// For each stage, the most micro-batches between its F and its I; empty: no
  /// limit.
  std::vector<int64_t> maxInFlight = {};
  /// If set, the order of F and I at each position, and only the place of W is
  /// chosen; W in this order is ignored.
  const TaskOrders *fixedOrder = nullptr;
};

/// List scheduling: whenever a position is idle, it runs the task that `policy`
/// prefers. Keeps the limits of `problem`; the result is empty if a limit is
/// less than the amount that one micro-batch saves at the position.
TaskOrders chooseGreedily(const SchedulingProblem &problem,
                          const Policy &policy);

} // namespace cleave::scheduling

#endif // CLEAVE_LIB_SCHEDULING_SCHEDULINGPROBLEM_H
