//===- ActionStep.h - From a micro-batch to a later one ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_IR_ACTIONSTEP_H
#define CLEAVE_LIB_DIALECT_PIPE_IR_ACTIONSTEP_H

#include "cleave/Dialect/Pipe/IR/Schedule.h"

namespace cleave::pipe {

/// By how much the micro-batch of `later` is greater, when nothing else
/// differs and both have one; otherwise 0.
inline int64_t stepBetween(const Action &action, const Action &later) {
  if (action.microBatch < 0 || later.microBatch < 0 ||
      action.part != later.part || action.stage != later.stage ||
      action.kind != later.kind || action.to != later.to)
    return 0;
  return later.microBatch - action.microBatch;
}

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_IR_ACTIONSTEP_H
