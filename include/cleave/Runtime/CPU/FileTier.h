//===- FileTier.h - A file as a second tier of memory -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CPU_FILETIER_H
#define CLEAVE_RUNTIME_CPU_FILETIER_H

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace cleave::runtime {

/// The second tier of a rank: a file without a name, which the system removes
/// when the process ends. It is read and written, not mapped, by a thread of
/// its own, in the order in which copies begin. After an error it neither reads
/// nor writes: what is in memory and what is in the file no longer belong to
/// one step.
class FileTier {
public:
  /// A copy between memory and the file. Prepared once, it can run any number
  /// of times, one after another.
  struct Move {
    char *memory = nullptr;
    int64_t offset = 0, bytes = 0;
    /// Whether it writes the file.
    bool evicts = false;

  private:
    friend class FileTier;
    bool done = true;
    Move *next = nullptr;
  };

  /// Reserves `bytes` bytes, zeros, on the disk of `folder`, which must exist;
  /// empty: the folder for temporary files.
  static llvm::Expected<std::unique_ptr<FileTier>>
  create(llvm::StringRef folder, int64_t bytes);
  ~FileTier();

  /// Begins a copy. Its memory may be used, and it may begin again, after
  /// `wait`.
  void start(Move &move);
  /// Returns false if this or an earlier copy has failed.
  bool wait(Move &move);
  /// Waits for all copies that have begun.
  void drain();

  /// Copies at once, after those that have begun.
  llvm::Error read(int64_t offset, char *to, int64_t bytes);
  llvm::Error write(int64_t offset, const char *from, int64_t bytes);

  /// Why it can no longer be used; empty if it can.
  std::string failure() const;

private:
  FileTier(int file, std::string folder);
  void work();
  /// Copies with the file; returns why it did not, or nothing.
  std::string copy(const Move &move) const;
  llvm::Error now(Move &move);

  int file;
  std::string folder;
  mutable std::mutex mutex;
  std::condition_variable begun, ended;
  Move *first = nullptr, *last = nullptr;
  bool stopping = false;
  std::string problem;
  std::thread thread;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CPU_FILETIER_H
