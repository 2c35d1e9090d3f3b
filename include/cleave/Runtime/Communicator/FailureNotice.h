//===- FailureNotice.h - Whether a failure is noticed -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_COMMUNICATOR_FAILURENOTICE_H
#define CLEAVE_RUNTIME_COMMUNICATOR_FAILURENOTICE_H

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <unistd.h>

namespace cleave::runtime {

/// Ends a process whose working thread does not notice the failure of its
/// launch: that thread hangs or is busy in vain.
class FailureNotice {
public:
  /// Called regularly by the working thread.
  void ask() { asked.store(true, std::memory_order_relaxed); }
  /// Whether that thread has not noticed a failure in time; the process ends
  /// `grace` seconds later.
  bool isUnnoticed(int grace) {
    graceMs.store(int64_t(grace) * 1000);
    return unnoticed.load();
  }
  /// Called regularly by the thread that listens, when there is a failure;
  /// `error` gives its text.
  template <typename F> void endIfUnnoticed(int64_t now, const F &error) {
    if (failedAt == 0) {
      failedAt = now;
      asked.store(false);
    } else if (!asked.load() && now - failedAt > kNoticeMs) {
      unnoticed.store(true);
      if (now - failedAt <= kNoticeMs + graceMs.load())
        return;
      std::fprintf(stderr, "error: %s\n", error().c_str());
      ::_exit(1);
    }
  }

private:
  /// The time in which a failure is noticed.
  static constexpr int64_t kNoticeMs = 800;

  std::atomic<bool> asked{false}, unnoticed{false};
  std::atomic<int64_t> graceMs{0};
  /// For the thread that listens.
  int64_t failedAt = 0;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_COMMUNICATOR_FAILURENOTICE_H
