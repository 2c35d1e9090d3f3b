//===- MessageBuffers.h - Memory of messages in flight ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A program has a request for each exchange of each micro-batch, but few are
/// in flight at a time. They share memory: there are as many buffers of each
/// size as were ever in use at once, and a step that has run before allocates
/// none.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_COMMUNICATOR_MESSAGEBUFFERS_H
#define CLEAVE_LIB_RUNTIME_COMMUNICATOR_MESSAGEBUFFERS_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <utility>

namespace cleave::runtime {

/// A buffer; empty if none was requested.
struct StagingBuffer {
  std::unique_ptr<char[]> memory;
  size_t size = 0;

  char *data() const { return memory.get(); }
};

/// The buffers of one communicator. Not thread-safe.
class Staging {
public:
  /// A buffer of at least `size` bytes, uninitialised; empty if the system has
  /// no memory.
  StagingBuffer take(size_t size) {
    if (size == 0)
      return {};
    // A much larger buffer is kept for a request that needs it.
    auto it = free.lower_bound(size);
    if (it != free.end() && it->first / 2 <= size) {
      StagingBuffer buffer{std::move(it->second), it->first};
      free.erase(it);
      return buffer;
    }
    std::unique_ptr<char[]> memory(new (std::nothrow) char[size]);
    if (!memory)
      return {};
    held += static_cast<int64_t>(size);
    return {std::move(memory), size};
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

#endif // CLEAVE_LIB_RUNTIME_COMMUNICATOR_MESSAGEBUFFERS_H
