//===- BranchAndBound.h - The optimal order ---------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_SCHEDULING_SEARCH_BRANCHANDBOUND_H
#define CLEAVE_LIB_SCHEDULING_SEARCH_BRANCHANDBOUND_H

#include "../SchedulingProblem.h"

namespace cleave::scheduling {

/// Searches for the fastest orders of a pipeline of one stage at each position.
/// Returns nothing if none that is faster than `known` was found within `steps`
/// branches. Sets `proved` if the search was complete.
std::optional<TaskOrders> findOptimum(const SchedulingProblem &problem,
                                      double known, int64_t steps,
                                      bool &proved);

} // namespace cleave::scheduling

#endif // CLEAVE_LIB_SCHEDULING_SEARCH_BRANCHANDBOUND_H
