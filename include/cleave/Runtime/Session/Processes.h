//===- Processes.h - The processes of a launch ------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_SESSION_PROCESSES_H
#define CLEAVE_RUNTIME_SESSION_PROCESSES_H

#include "cleave/Runtime/Session/AllRanks.h"
#include <functional>
#include <memory>

namespace cleave::runtime {

/// All processes of the launch, before and beside the sessions that run
/// on them. It has a communicator of its own: what it exchanges never meets the
/// messages of a session. Only the thread that made it calls it, but for `fail`
/// and `error`.
class Processes {
public:
  /// `secret` is what the launcher has given to all processes, or "";
  /// `interrupted` is asked while this one waits for others.
  static llvm::Expected<std::unique_ptr<Processes>>
  connect(const std::string &secret = "",
          std::function<bool()> interrupted = {});

  int rank() const { return communicator->rank; }
  int size() const { return communicator->size; }
  AllRanks &all() { return ranks; }

  /// Ends all processes, because this one cannot continue.
  void fail(const std::string &message);
  /// Whether this process writes what others wait for.
  void setBusy(bool on);
  /// Whether the launch has failed and the thread that made this has not
  /// noticed it soon, because it does something else; the process ends `grace`
  /// seconds later. Any thread may ask.
  bool isUnnoticed(int grace) const;
  /// Why the launch has failed, "rank R: ..."; "" while it has not. Who asks
  /// has noticed it.
  std::string error() const;

private:
  explicit Processes(cleave_communicator *communicator)
      : communicator(communicator), ranks(communicator) {}

  cleave_communicator *communicator;
  AllRanks ranks;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_SESSION_PROCESSES_H
