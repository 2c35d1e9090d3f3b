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

/// The threads of the ranks of this process. Each always runs the same rank,
/// with its OpenMP team; the calling thread runs the first one. In a process
/// that was forked it does not: its team is that of the process before, whose
/// other threads are not there, and OpenMP would wait for them.
class RankThreads {
public:
  explicit RankThreads(size_t ranks);
  ~RankThreads();

  /// Runs `body(rank)` for each rank, in parallel.
  void run(llvm::function_ref<void(size_t)> body);

private:
  void lead(size_t rank);

  bool callerLeads;
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::condition_variable changed;
  llvm::function_ref<void(size_t)> body;
  /// The number of calls of `run`; 0 at the end.
  size_t call = 1;
  size_t busy = 0;
};

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_SESSION_RANKTHREADS_H
