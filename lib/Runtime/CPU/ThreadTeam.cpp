//===- ThreadTeam.cpp - The threads of a rank -----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// Calls the OpenMP runtime of the contraction library directly: compiling with
// -fopenmp would add the compiler's runtime, and a second team.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/CPU/ThreadTeam.h"
#include "cleave/Executable/Format/Program.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <sched.h>
#include <unistd.h>

extern "C" {
void GOMP_parallel(void (*fn)(void *), void *data, unsigned numThreads,
                   unsigned flags);
int omp_get_thread_num(void);
int omp_get_num_threads(void);
int omp_get_max_threads(void);
int omp_get_dynamic(void);
int omp_get_max_active_levels(void);
void omp_set_num_threads(int);
void omp_set_dynamic(int);
void omp_set_max_active_levels(int);
}

using namespace cleave::runtime;

/// The cores at the start of the process: a thread that is pinned later sees
/// only its own.
static const cpu_set_t &processCores() {
  static const cpu_set_t cores = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (::sched_getaffinity(::getpid(), sizeof(set), &set) != 0)
      CPU_SET(0, &set);
    return set;
  }();
  return cores;
}

int ThreadTeam::cores() { return std::max(1, CPU_COUNT(&processCores())); }

void ThreadTeam::unpin() {
  (void)::sched_setaffinity(0, sizeof(cpu_set_t), &processCores());
}

int ThreadTeam::defaultThreads() {
  if (const char *text = std::getenv("OMP_NUM_THREADS"))
    if (int wanted = std::atoi(text); wanted > 0)
      return wanted;
  return cores();
}

ThreadTeam::ThreadTeam(int wanted, int firstCore, bool pinCaller) {
  const cpu_set_t &allowed = processCores();
  threads = std::clamp(wanted > 0 ? wanted : defaultThreads(), 1,
                       Program::kMaxThreads);
  if (firstCore < 0 || std::getenv("OMP_PROC_BIND"))
    return;
  run([&](int thread, int) {
    if (thread == 0 && !pinCaller)
      return;
    int index = 0;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (!CPU_ISSET(core, &allowed) || index++ != firstCore + thread)
        continue;
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(core, &one);
      // If pinning is refused, only speed suffers.
      (void)::sched_setaffinity(0, sizeof(one), &one);
      return;
    }
  });
}

ThreadTeam::Adopted::Adopted(int wanted)
    : threads(omp_get_max_threads()), dynamic(omp_get_dynamic()),
      levels(omp_get_max_active_levels()) {
  omp_set_dynamic(0);
  omp_set_max_active_levels(1);
  omp_set_num_threads(wanted);
}

ThreadTeam::Adopted::~Adopted() {
  omp_set_num_threads(threads);
  omp_set_max_active_levels(levels);
  omp_set_dynamic(dynamic);
}

void ThreadTeam::run(llvm::function_ref<void(int, int)> body) const {
  if (threads == 1)
    return body(0, 1);
  GOMP_parallel(
      [](void *data) {
        (*static_cast<llvm::function_ref<void(int, int)> *>(data))(
            omp_get_thread_num(), omp_get_num_threads());
      },
      &body, static_cast<unsigned>(threads), 0);
}

void ThreadTeam::parallelFor(int64_t n, int64_t grain,
                             llvm::function_ref<void(int64_t, int64_t)> body,
                             int64_t align) const {
  if (n <= 0)
    return;
  int64_t blocks = (n + align - 1) / align;
  int64_t pieces = std::min<int64_t>(
      {threads, std::max<int64_t>(1, n / std::max<int64_t>(1, grain)), blocks});
  if (pieces == 1)
    return body(0, n);
  run([&](int thread, int count) {
    // If the team is smaller than requested, each thread takes several pieces.
    for (int64_t piece = thread; piece < pieces; piece += count) {
      int64_t begin = blocks * piece / pieces * align;
      int64_t end = std::min(n, blocks * (piece + 1) / pieces * align);
      if (begin < end)
        body(begin, end);
    }
  });
}

void ThreadTeam::parallelEach(
    int64_t n, llvm::function_ref<void(int, int64_t)> body) const {
  if (n <= 0)
    return;
  std::atomic<int64_t> next{0};
  auto work = [&](int thread, int) {
    for (int64_t item; (item = next.fetch_add(1)) < n;)
      body(thread, item);
  };
  // A single item runs inside the team as well: the library splits sums
  // differently inside and outside of a parallel region.
  run(work);
}
