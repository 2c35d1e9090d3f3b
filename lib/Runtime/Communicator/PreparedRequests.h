//===- PreparedRequests.h - Comparison of requests --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_COMMUNICATOR_PREPAREDREQUESTS_H
#define CLEAVE_LIB_RUNTIME_COMMUNICATOR_PREPAREDREQUESTS_H

#include "cleave/Runtime/Communicator/Communicator.h"
#include <functional>
#include <string>
#include <vector>

namespace cleave::runtime {

/// FNV-1a.
uint64_t hashOf(const std::string &bytes);

/// The requests of one member of a group that its next barrier compares: all
/// since the last one, up to the first that was started.
class PreparedRequests {
public:
  /// A request in a form that can be compared.
  struct One {
    uint64_t hash;
    int64_t elements;
    int32_t kind, dtype;
  };
  struct Outcome {
    /// False after a failure.
    bool compared = true;
    /// The first member that differs, and how; 0 if all are equal.
    size_t member = 0;
    std::string text;
  };
  /// Sets `all` to the bytes of all members; false after a failure.
  using Gather = std::function<bool(const void *own, size_t size, void *all)>;

  void add(const cleave_collective *blocks, int32_t count, int members);
  void start() { running = true; }
  /// Called by all members, who get the same outcome.
  Outcome compare(const std::vector<int32_t> &ranks, const Gather &gather);

private:
  std::vector<One> list;
  bool running = false;
};

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_COMMUNICATOR_PREPAREDREQUESTS_H
