//===- Staging.h - Memory of messages that are under way --------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A program has a request for each exchange of each micro-batch, of which few
/// are under way at a time. They take their memory in turn: there is as much of
/// each size as was ever in use at once, and a step that has run before takes no
/// more.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_MPI_STAGING_H
#define CLEAVE_LIB_RUNTIME_MPI_STAGING_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

namespace cleave::runtime {

/// A piece of memory; empty where none was asked for.
struct StagingBuffer {
  std::unique_ptr<char[]> memory;
  size_t size = 0;

  char *data() const { return memory.get(); }
};

/// The memory of one communicator. Not for several threads.
class Staging {
public:
  /// Of `size` bytes at least, with anything in it.
  StagingBuffer take(size_t size) {
    if (size == 0)
      return {};
    // One that is much larger is kept for what needs it.
    auto it = free.lower_bound(size);
    if (it != free.end() && it->first / 2 <= size) {
      StagingBuffer buffer{std::move(it->second), it->first};
      free.erase(it);
      return buffer;
    }
    held += static_cast<int64_t>(size);
    return {std::unique_ptr<char[]>(new char[size]), size};
  }

  void give(StagingBuffer &buffer) {
    if (buffer.memory)
      free.emplace(buffer.size, std::move(buffer.memory));
    buffer.size = 0;
  }

  /// Bytes taken from the system.
  int64_t bytes() const { return held; }

private:
  std::multimap<size_t, std::unique_ptr<char[]>> free;
  int64_t held = 0;
};

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_MPI_STAGING_H
