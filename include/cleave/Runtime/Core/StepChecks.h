//===- StepChecks.h - Checks that have failed in a step ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CORE_STEPCHECKS_H
#define CLEAVE_RUNTIME_CORE_STEPCHECKS_H

#include "cleave/Executable/Format/Program.h"
#include "cleave/Support/CheckMessage.h"

#include <algorithm>
#include <array>

namespace cleave::runtime {

/// The checks of a rank that have failed in a step, until the next check that
/// all ranks reach.
class StepChecks {
public:
  /// Notes the result of a check, and its values, whose memory may be used for
  /// others later.
  void note(const CheckCommand &check, bool passed, const int64_t *values) {
    if (passed || (worst && worst->severity() >= check.severity()))
      return;
    worst = &check;
    std::copy_n(values, check.count, kept.begin());
  }
  /// Whether none has failed.
  bool passed() const { return !worst; }
  /// The one to report, or null.
  const CheckCommand *failed() const { return worst; }
  /// Its message on rank `rank`.
  std::string message(int64_t rank) const {
    return checkMessage(worst->message, kept.data(), worst->count, rank);
  }

private:
  const CheckCommand *worst = nullptr;
  std::array<int64_t, kCheckValues> kept{};
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CORE_STEPCHECKS_H
