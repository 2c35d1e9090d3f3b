//===- RankThreads.cpp - A thread for each rank ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "RankThreads.h"
#include <unistd.h>

using namespace cleave::runtime;

/// The process that loaded this library.
static const pid_t loader = getpid();

RankThreads::RankThreads(size_t ranks) : callerLeads(getpid() == loader) {
  for (size_t rank = callerLeads ? 1 : 0; rank < ranks; ++rank)
    threads.emplace_back([this, rank] { lead(rank); });
}

RankThreads::~RankThreads() {
  {
    std::lock_guard<std::mutex> lock(mutex);
    call = 0;
  }
  changed.notify_all();
  for (std::thread &thread : threads)
    thread.join();
}

void RankThreads::lead(size_t rank) {
  std::unique_lock<std::mutex> lock(mutex);
  for (size_t seen = 1;;) {
    changed.wait(lock, [&] { return call != seen; });
    if (call == 0)
      return;
    seen = call;
    lock.unlock();
    body(rank);
    lock.lock();
    if (--busy == 0)
      changed.notify_all();
  }
}

void RankThreads::run(llvm::function_ref<void(size_t)> work) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    body = work;
    ++call;
    busy = threads.size();
  }
  changed.notify_all();
  if (callerLeads)
    work(0);
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return busy == 0; });
}
