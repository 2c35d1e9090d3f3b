//===- communicator.cpp - Time of collectives between threads -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// Measures collectives between ranks, which are single threads of this process,
// and the time in which each of these threads copies as many bytes.
// Usage: cleave-communicator-bench [ranks] [MiB] [repetitions]
// Medians are printed, because other processes may disturb a repetition.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Communicator/ThreadWorld.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

using namespace cleave::runtime;
using Clock = std::chrono::steady_clock;

namespace {

/// Returns a collective over vectors of `count` f32 elements.
cleave_collective describe(int kind, int64_t count, const float *src,
                           float *dst) {
  cleave_collective what{};
  what.kind = kind;
  what.reduction = CLEAVE_SUM;
  what.dtype = CLEAVE_F32;
  what.dims = 1;
  what.sizes[0] = count;
  what.src_strides[0] = what.dst_strides[0] = 1;
  what.src = src;
  what.dst = dst;
  return what;
}

} // namespace

int main(int argc, char **argv) {
  int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  int64_t bytes = int64_t(argc > 2 ? std::atoi(argv[2]) : 64) << 20;
  int repetitions = argc > 3 ? std::atoi(argv[3]) : 21;
  if (ranks < 1 || bytes < 1 || repetitions < 1) {
    std::fprintf(stderr, "usage: %s [ranks] [MiB] [repetitions]\n", argv[0]);
    return 2;
  }
  int64_t count = bytes / 4, part = count / ranks;

  ThreadWorld world(ranks);
  std::barrier<> together(ranks);
  std::vector<int32_t> everyone;
  for (int rank = 0; rank < ranks; ++rank)
    everyone.push_back(rank);
  // times[kind][repetition][rank], in milliseconds.
  const char *names[] = {
      "copy",           "all-reduce, in place", "all-reduce, apart",
      "reduce-scatter", "all-gather",           "all-reduce, 4 bytes"};
  constexpr int kinds = 6;
  std::vector<std::vector<std::vector<double>>> times(
      kinds, std::vector<std::vector<double>>(
                 static_cast<size_t>(repetitions),
                 std::vector<double>(static_cast<size_t>(ranks))));

  auto run = [&](int rank) {
    cleave_team team{nullptr, 1,
                     [](void *, void (*body)(void *, int32_t, int32_t),
                        void *data) { body(data, 0, 1); }};
    cleave_communicator *c = world.connect(rank, team);
    cleave_group *group = c->api->group(c, everyone.data(), ranks);
    auto src = std::make_unique<float[]>(static_cast<size_t>(count));
    auto dst = std::make_unique<float[]>(static_cast<size_t>(count));
    std::fill_n(src.get(), count, 1.0f);
    std::vector<int64_t> offsets;
    for (int i = 0; i < ranks; ++i)
      offsets.push_back(i * part);
    cleave_collective what[kinds] = {
        {},
        describe(CLEAVE_ALL_REDUCE, count, src.get(), src.get()),
        describe(CLEAVE_ALL_REDUCE, count, src.get(), dst.get()),
        describe(CLEAVE_REDUCE_SCATTER, part, src.get(), dst.get()),
        describe(CLEAVE_ALL_GATHER, part, src.get(), dst.get()),
        describe(CLEAVE_ALL_REDUCE, 1, src.get(), dst.get())};
    what[3].src_offsets = what[4].dst_offsets = offsets.data();
    cleave_request *requests[kinds] = {};
    for (int kind = 1; kind < kinds; ++kind)
      requests[kind] = c->api->prepare(group, &what[kind], 1);
    for (int i = 0; i < repetitions; ++i)
      for (int kind = 0; kind < kinds; ++kind) {
        together.arrive_and_wait();
        Clock::time_point begin = Clock::now();
        if (kind == 0)
          std::memcpy(dst.get(), src.get(), static_cast<size_t>(bytes));
        else if (c->api->start(requests[kind]) || c->api->wait(requests[kind]))
          std::abort();
        times[static_cast<size_t>(kind)][static_cast<size_t>(i)]
             [static_cast<size_t>(rank)] =
                 std::chrono::duration<double, std::milli>(Clock::now() - begin)
                     .count();
        // The in-place sum is reset, so that it does not grow.
        if (kind == 1)
          std::fill_n(src.get(), count, 1.0f);
      }
    for (int kind = 1; kind < kinds; ++kind)
      c->api->release(requests[kind]);
    c->api->close(c);
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back(run, rank);
  for (std::thread &thread : threads)
    thread.join();

  std::printf("%d ranks, %lld MiB each, median of %d\n", ranks,
              static_cast<long long>(bytes >> 20), repetitions);
  double copy = 0;
  for (int kind = 0; kind < kinds; ++kind) {
    std::vector<double> slowest;
    for (const std::vector<double> &one : times[static_cast<size_t>(kind)])
      slowest.push_back(*std::max_element(one.begin(), one.end()));
    std::sort(slowest.begin(), slowest.end());
    double median = slowest[slowest.size() / 2];
    if (kind == 0)
      copy = median;
    std::printf("%-24s %9.3f ms  %5.2f x copy\n", names[kind], median,
                median / copy);
  }
  return 0;
}
