//===- StepChecks.h - Checks that have failed in a step ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CORE_STEPCHECKS_H
#define CLEAVE_RUNTIME_CORE_STEPCHECKS_H

#include "cleave/Executable/Format/Program.h"

namespace cleave::runtime {

/// The deferred checks of a rank that have failed in a step, until the next
/// check that all ranks reach.
class StepChecks {
public:
  /// Notes the result of a deferred check. One that ends the run comes before
  /// those that skip the step.
  void note(const CheckCommand &check, bool passed) {
    if (!passed && (!first || (first->skips && !check.skips)))
      first = &check;
  }
  /// Whether none has failed.
  bool passed() const { return !first; }
  /// What to say of a step that stops at `last`, whose flag is `passed`: of
  /// checks that have failed, the first that ends the run, or else the first.
  const CheckCommand &failed(bool passed, const CheckCommand &last) const {
    return first && (passed || last.skips || !first->skips) ? *first : last;
  }

private:
  const CheckCommand *first = nullptr;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CORE_STEPCHECKS_H
