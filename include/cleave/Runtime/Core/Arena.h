//===- Arena.h - The memory of a rank ---------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CORE_ARENA_H
#define CLEAVE_RUNTIME_CORE_ARENA_H

#include "llvm/Support/Error.h"
#include <cstddef>
#include <cstdint>

namespace cleave::runtime {

/// One anonymous mapping that holds all memory of a step.
class Arena {
public:
  Arena() = default;
  Arena(Arena &&other) noexcept;
  Arena &operator=(Arena &&other) noexcept;
  ~Arena();

  /// Maps `bytes` bytes of zeros, in huge pages if the system has them. Pages
  /// are not touched yet.
  static llvm::Expected<Arena> map(int64_t bytes);

  char *data() const { return base; }
  int64_t size() const { return bytes; }

  /// Writes to each page of the `index`-th of `count` equal shares, so that
  /// later steps have no page faults and pages are near the threads that
  /// touched them.
  void touch(int64_t index, int64_t count) const;

private:
  char *base = nullptr;
  int64_t bytes = 0;
  size_t mappedBytes = 0;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CORE_ARENA_H
