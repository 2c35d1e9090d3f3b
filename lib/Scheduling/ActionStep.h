//===- ActionStep.h - Micro-batch offset of two actions ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_SCHEDULING_ACTIONSTEP_H
#define CLEAVE_LIB_SCHEDULING_ACTIONSTEP_H

#include "cleave/Scheduling/Schedule.h"

namespace cleave::scheduling {

/// Returns the micro-batch of `later` less that of `action`, if the actions
/// differ in nothing else and both have a micro-batch; otherwise 0.
inline int64_t stepBetween(const Action &action, const Action &later) {
  if (action.microBatch < 0 || later.microBatch < 0 ||
      action.part != later.part || action.stage != later.stage ||
      action.kind != later.kind || action.to != later.to)
    return 0;
  return later.microBatch - action.microBatch;
}

} // namespace cleave::scheduling

#endif // CLEAVE_LIB_SCHEDULING_ACTIONSTEP_H
