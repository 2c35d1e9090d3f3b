//===- ThreadTeam.h - The threads of a rank ---------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CPU_THREADTEAM_H
#define CLEAVE_RUNTIME_CPU_THREADTEAM_H

#include "llvm/ADT/STLFunctionalExtras.h"
#include <cstdint>

namespace cleave::runtime {

/// The one team of threads of a rank: the OpenMP team that the contraction
/// library uses as well. A second pool would compete for the cores.
class ThreadTeam {
public:
  /// `threads` of 0 means OMP_NUM_THREADS or else all cores that this process
  /// may use. From `firstCore` on (of those cores), each thread is pinned to
  /// one core; the calling thread only with `pinCaller`, since threads that a
  /// host application starts later would inherit its core. With -1 no thread is
  /// pinned.
  explicit ThreadTeam(int threads = 0, int firstCore = -1,
                      bool pinCaller = false);

  /// OMP_NUM_THREADS, or all cores that this process may use.
  static int defaultThreads();
  /// Cores that this process may use.
  static int cores();
  /// Lets the calling thread run on all of them.
  static void unpin();

  int size() const { return threads; }

  /// What OpenMP keeps of a thread; given back at the end of the scope, since
  /// the thread may be an application's, whose own parallel regions follow.
  class Adopted {
  public:
    explicit Adopted(int threads);
    ~Adopted();
    Adopted(const Adopted &) = delete;
    Adopted &operator=(const Adopted &) = delete;

  private:
    int threads, dynamic, levels;
  };

  /// Makes this team that of the library for calls from the current thread, in
  /// a scope. Called at the start of each step, because OpenMP keeps the
  /// setting per thread.
  [[nodiscard]] Adopted adopt() const { return Adopted(threads); }

  /// Splits [0, n) into at most `size()` contiguous pieces of at least `grain`
  /// items and runs them; the split depends on these numbers only. Boundaries
  /// are multiples of `align`.
  void parallelFor(int64_t n, int64_t grain,
                   llvm::function_ref<void(int64_t begin, int64_t end)> body,
                   int64_t align = 1) const;

  /// Assigns the items [0, n) one by one, in order, to free threads. For items
  /// that do not write the same memory.
  void
  parallelEach(int64_t n,
               llvm::function_ref<void(int thread, int64_t item)> body) const;

  /// Runs `body(thread, count)` once on each of `count` <= `size()` threads.
  void run(llvm::function_ref<void(int thread, int count)> body) const;

private:
  int threads = 1;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CPU_THREADTEAM_H
