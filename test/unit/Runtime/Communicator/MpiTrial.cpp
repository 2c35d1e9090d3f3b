//===- MpiTrial.cpp - Tries the MPI plugin --------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// Started by mpirun, with the plugin's path: runs drawn collectives, with
// "kinds N" such of each kind, of about N elements at most, and with "large"
// some of more bytes than an int counts; with "rows" rows to all, of which one
// rank gives a wrong number where a fault is named. With the name of a fault
// and a rank, that rank stops, ends, fails, closes or is slow while the others
// wait for it; what they are told is printed, and when. One that is late goes
// on when the others have ended.
//
//===----------------------------------------------------------------------===//

#include "CommunicatorTrial.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <thread>
#include <unistd.h>
#include <vector>

using Clock = std::chrono::steady_clock;

static cleave_group *groupOfAll(cleave_communicator *c) {
  std::vector<int32_t> all;
  for (int32_t i = 0; i < c->size; ++i)
    all.push_back(i);
  return c->api->group(c, all.data(), c->size);
}

/// How soon ranks must be told of a fault.
static constexpr std::chrono::seconds kInTime(5);

static int runTrials(cleave_communicator *c) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    std::string problem =
        cleave::test::runTrial(c, seed, seed % 6 == 5 ? 20000 : 400);
    if (problem.empty())
      continue;
    std::printf("%s\n", problem.c_str());
    c->api->fail(c, problem.c_str());
    return 1;
  }
  if (c->rank == 0)
    std::printf("all is well with %d ranks\n", c->size);
  return 0;
}

/// Rows to all, then such of which one gives a wrong number.
static int runRows(cleave_communicator *c, const char *fault) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    std::string problem = cleave::test::runRowTrial(c, seed);
    if (problem.empty())
      continue;
    std::printf("%s\n", problem.c_str());
    c->api->fail(c, problem.c_str());
    return 1;
  }
  if (c->rank == 0)
    std::printf("rows are well with %d ranks\n", c->size);
  if (!fault)
    return 0;
  std::printf("rank %d was told: %s\n", c->rank,
              cleave::test::runRowFault(c, fault).c_str());
  std::fflush(stdout);
  // The launcher ends all processes with the first.
  std::this_thread::sleep_for(std::chrono::seconds(1));
  return 1;
}

static int runKinds(cleave_communicator *c, int64_t largest) {
  for (int32_t kind = CLEAVE_ALL_REDUCE; kind <= CLEAVE_SEND; ++kind)
    for (uint64_t seed = 0; seed < 6; ++seed) {
      std::string problem = cleave::test::runTrial(
          c, 100 + seed, seed % 2 ? largest : largest / 7 + 1, kind);
      if (problem.empty())
        continue;
      std::printf("%s\n", problem.c_str());
      c->api->fail(c, problem.c_str());
      return 1;
    }
  if (c->rank == 0)
    std::printf("all kinds are well with %d ranks\n", c->size);
  return 0;
}

/// More than 2^31 bytes in one block. Its rows are all the same in memory that
/// is read, and as long as a prime, so that none lies where another one would.
static int runLarge(cleave_communicator *c) {
  constexpr int64_t rows = 65, length = 33554393;
  cleave_group *group = groupOfAll(c);
  auto byteOf = [](int64_t i, int64_t rank) {
    uint64_t mixed = static_cast<uint64_t>(i * 4 + rank) * 0x9e3779b97f4a7c15u;
    return static_cast<int8_t>(mixed >> 56);
  };
  std::vector<int8_t> src(length), dst;
  for (int64_t i = 0; i < length; ++i)
    src[static_cast<size_t>(i)] = byteOf(i, c->rank);
  for (int32_t kind : {CLEAVE_ALL_REDUCE, CLEAVE_BROADCAST, CLEAVE_SEND}) {
    if (kind == CLEAVE_SEND && c->size != 2)
      continue;
    // What is combined takes much memory already.
    bool whole = kind == CLEAVE_SEND;
    bool receives = kind != CLEAVE_SEND || c->rank == 1;
    dst.assign(
        receives ? static_cast<size_t>(whole ? rows * length : length) : 0, -1);
    cleave_collective what{};
    what.kind = kind;
    what.reduction = CLEAVE_MAX;
    what.dtype = CLEAVE_I8;
    what.dims = 2;
    what.sizes[0] = rows;
    what.sizes[1] = length;
    what.src_strides[1] = what.dst_strides[1] = 1;
    what.dst_strides[0] = whole ? length : 0;
    what.src = src.data();
    what.dst = dst.data();
    cleave_request *request = c->api->prepare(group, &what, 1);
    if (!request || c->api->start(request) || c->api->wait(request)) {
      std::printf("%s\n", c->api->error(c));
      return 1;
    }
    c->api->release(request);
    for (int64_t i = 0; i < static_cast<int64_t>(dst.size()); ++i) {
      int8_t right = byteOf(i % length, 0);
      for (int32_t rank = 1; kind == CLEAVE_ALL_REDUCE && rank < c->size;
           ++rank)
        right = std::max(right, byteOf(i % length, rank));
      if (dst[static_cast<size_t>(i)] == right)
        continue;
      std::printf("kind %d: byte %lld is wrong\n", kind,
                  static_cast<long long>(i));
      c->api->fail(c, "a byte is wrong");
      return 1;
    }
  }
  if (c->rank == 0)
    std::printf("large messages are well with %d ranks\n", c->size);
  return 0;
}

/// Prepares what `who` alone does otherwise: more elements, other strides, or
/// one collective less. Two that all have in common come before.
static int runDiffering(cleave_communicator *c, const char *how, int who) {
  cleave_group *group = groupOfAll(c);
  float in[16] = {}, out[16] = {};
  for (int i = 0; i < 4; ++i) {
    cleave_collective what{};
    what.dtype = CLEAVE_F32;
    what.dims = 1;
    what.sizes[0] = 4;
    what.src_strides[0] = what.dst_strides[0] = 1;
    what.src = in;
    what.dst = out;
    if (c->rank == who && i == 2) {
      if (std::strcmp(how, "elements") == 0)
        what.sizes[0] = 5;
      if (std::strcmp(how, "strides") == 0)
        what.dst_strides[0] = 2;
    }
    if (c->rank == who && i == 3 && std::strcmp(how, "fewer") == 0)
      break;
    if (!c->api->prepare(group, &what, 1))
      return 2;
  }
  if (c->api->barrier(group) == 0) {
    std::printf("nothing differs\n");
    return 0;
  }
  std::printf("rank %d was told: %s\n", c->rank, c->api->error(c));
  std::fflush(stdout);
  // The launcher ends all processes with the first.
  std::this_thread::sleep_for(std::chrono::seconds(1));
  return 1;
}

static int runFault(cleave_communicator *c, const char *fault, int who) {
  cleave_group *group = groupOfAll(c);
  float in = 1, out = 0;
  cleave_collective what{};
  what.dtype = CLEAVE_F32;
  what.src = &in;
  what.dst = &out;
  cleave_request *request = c->api->prepare(group, &what, 1);
  // Who fails soon may do so while others are still on their way out.
  bool met = request && c->api->barrier(group) == 0;
  if (!request || (!met && c->rank == who))
    return 2;
  Clock::time_point begin = Clock::now();
  if (c->rank == who) {
    if (std::strcmp(fault, "stop") == 0)
      ::raise(SIGSTOP);
    if (std::strcmp(fault, "end") == 0)
      ::_exit(3);
    if (std::strcmp(fault, "fail") == 0) {
      c->api->fail(c, "out of paper");
      // The launcher ends all processes with the first: others speak before.
      std::this_thread::sleep_until(begin + kInTime);
      return 1;
    }
    if (std::strcmp(fault, "close") == 0)
      return 1;
    // Slow, but well.
    while (std::strcmp(fault, "slow") == 0 &&
           Clock::now() - begin < std::chrono::seconds(6))
      ;
  }
  bool ok = met && c->api->start(request) == 0 && c->api->wait(request) == 0;
  std::chrono::duration<double> time = Clock::now() - begin;
  c->api->release(request);
  if (ok && out == static_cast<float>(c->size)) {
    if (c->rank == who && std::strcmp(fault, "late") == 0)
      std::this_thread::sleep_for(std::chrono::seconds(6));
    if (c->rank == who)
      std::printf("the sum is right\n");
    return 0;
  }
  std::printf("rank %d was told, %s: %s\n", c->rank,
              time < kInTime ? "in time" : "too late", c->api->error(c));
  std::fflush(stdout);
  std::this_thread::sleep_until(begin + kInTime);
  return 1;
}

int main(int argc, char **argv) {
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr,
                 "usage: %s plugin [large | rows [fault] | kinds elements | "
                 "elements|strides|fewer|same rank | "
                 "stop|end|fail|close|slow|late rank]\n",
                 argv[0]);
    return 2;
  }
  void *plugin = ::dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
  auto open = plugin ? reinterpret_cast<cleave_communicator_open_function>(
                           ::dlsym(plugin, CLEAVE_COMMUNICATOR_OPEN))
                     : nullptr;
  if (!open) {
    std::fprintf(stderr, "%s\n", ::dlerror());
    return 2;
  }
  cleave_team team = cleave::test::singleThread();
  char error[256] = "";
  cleave_communicator *c =
      open(CLEAVE_COMMUNICATOR_ABI, &team, error, sizeof(error));
  if (!c) {
    std::fprintf(stderr, "%s\n", error);
    return 2;
  }
  int number = argc > 3 ? std::atoi(argv[3]) : 0;
  auto is = [&](std::initializer_list<const char *> names) {
    return std::any_of(names.begin(), names.end(), [&](const char *name) {
      return std::strcmp(argv[2], name) == 0;
    });
  };
  int code = argc == 2       ? runTrials(c)
             : is({"large"}) ? runLarge(c)
             : is({"rows"})  ? runRows(c, argc > 3 ? argv[3] : nullptr)
             : is({"kinds"}) ? runKinds(c, number)
             : is({"elements", "strides", "fewer", "same"})
                 ? runDiffering(c, argv[2], number)
                 : runFault(c, argv[2], number);
  int rank = c->rank;
  c->api->close(c);
  if (code == 0)
    std::printf("rank %d has closed\n", rank);
  return code;
}
