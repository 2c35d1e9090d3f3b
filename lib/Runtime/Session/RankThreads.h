//===- RankThreads.h - A thread for each rank -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_SESSION_RANKTHREADS_H
#define CLEAVE_LIB_RUNTIME_SESSION_RANKTHREADS_H

#include "llvm/ADT/STLFunctionalExtras.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace cleave::runtime {

/// The threads that lead the ranks of this process. Each leads the same rank
/// always, with the OpenMP team that belongs to it; the calling thread leads
/// the first one.
class RankThreads {
public:
  explicit RankThreads(size_t ranks);
  ~RankThreads();

  /// Runs `body(rank)` for each rank, all at the same time.
  void run(llvm::function_ref<void(size_t)> body);

private:
  void lead(size_t rank);

  std::vector<std::thread> threads;
  std::mutex mutex;
  std::condition_variable changed;
  llvm::function_ref<void(size_t)> body;
  /// Counts the calls of `run`; 0 in the end.
  size_t call = 1;
  size_t busy = 0;
};

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_SESSION_RANKTHREADS_H
