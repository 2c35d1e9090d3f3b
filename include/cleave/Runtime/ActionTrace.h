//===- ActionTrace.h - The actions that a rank ran --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_ACTIONTRACE_H
#define CLEAVE_RUNTIME_ACTIONTRACE_H

#include "cleave/Runtime/Executor.h"

namespace cleave::runtime {

/// One action of a schedule, as a rank ran it.
struct ActionEvent {
  /// Such as `1F3`, and "forward".
  std::string name, kind;
  int64_t stage = 0;
  /// Floating-point operations, 0 where it is not said.
  int64_t flops = 0;
  /// -1 for what runs once.
  int32_t microBatch = -1;
  /// Which of the traced runs it is of.
  int32_t run = 0;
  /// Nanoseconds since the trace began, and how long all its commands took; how
  /// much of that it waited until all ranks agreed on a check.
  int64_t start = 0, duration = 0, waited = 0;
};

/// Makes actions of the commands that `trace` has of runs of an entry of
/// `program`, in their order. Parts that are no action are left out.
std::vector<ActionEvent> actionsOf(const Program &program,
                                   llvm::StringRef entry,
                                   llvm::ArrayRef<TraceEvent> trace);

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_ACTIONTRACE_H
