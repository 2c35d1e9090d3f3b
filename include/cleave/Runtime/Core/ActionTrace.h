//===- ActionTrace.h - The actions that a rank ran --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CORE_ACTIONTRACE_H
#define CLEAVE_RUNTIME_CORE_ACTIONTRACE_H

#include "cleave/Runtime/Core/RunRecord.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include <vector>

namespace cleave::runtime {

/// One action of a schedule on a rank, with its time.
struct ActionEvent {
  /// Its name, such as `1F3`, and its kind, such as "forward".
  std::string name, kind;
  int64_t stage = 0;
  /// Floating-point operations, 0 if unknown.
  int64_t flops = 0;
  /// -1 for an action that runs once.
  int32_t microBatch = -1;
  /// The index of its run among the traced runs.
  int32_t run = 0;
  /// The start in nanoseconds since the trace began, the duration of all its
  /// commands, and how much of it was spent waiting for the agreement on a
  /// check.
  int64_t start = 0, duration = 0, waited = 0;
};

/// Combines the commands in `trace`, of runs of an entry of `program`, into
/// actions, in their order. Parts that are not actions are left out.
std::vector<ActionEvent> actionsOf(const Program &program,
                                   llvm::StringRef entry,
                                   llvm::ArrayRef<TraceEvent> trace);

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CORE_ACTIONTRACE_H
