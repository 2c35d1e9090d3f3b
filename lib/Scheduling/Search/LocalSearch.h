//===- LocalSearch.h - Local search on orders -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_SCHEDULING_SEARCH_LOCALSEARCH_H
#define CLEAVE_LIB_SCHEDULING_SEARCH_LOCALSEARCH_H

#include "../SchedulingProblem.h"

namespace cleave::scheduling {

/// Simulated annealing that moves tasks on the critical path. The result is
/// never slower than `orders`, and is the same for the same input. `tries` is
/// the most moves to try.
TaskOrders improve(const SchedulingProblem &problem, TaskOrders orders,
                   int64_t tries);

} // namespace cleave::scheduling

#endif // CLEAVE_LIB_SCHEDULING_SEARCH_LOCALSEARCH_H
