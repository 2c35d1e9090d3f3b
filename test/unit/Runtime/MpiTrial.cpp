//===- MpiTrial.cpp - Tries the MPI plugin --------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// Started by mpirun, with the plugin's path: runs drawn collectives. With the
// name of a fault and a rank, that rank stops, ends, fails, closes or is slow
// while the others wait for it; what they are told is printed, and when. One
// that is late goes on when the others have ended.
//
//===----------------------------------------------------------------------===//

#include "CommunicatorTrial.h"

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

static int runFault(cleave_communicator *c, const char *fault, int who) {
  std::vector<int32_t> all;
  for (int32_t i = 0; i < c->size; ++i)
    all.push_back(i);
  cleave_group *group = c->api->group(c, all.data(), c->size);
  float in = 1, out = 0;
  cleave_collective what{};
  what.dtype = CLEAVE_F32;
  what.src = &in;
  what.dst = &out;
  cleave_request *request = c->api->prepare(group, &what, 1);
  if (!request || c->api->barrier(group))
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
  bool ok = c->api->start(request) == 0 && c->api->wait(request) == 0;
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
  if (argc != 2 && argc != 4) {
    std::fprintf(stderr,
                 "usage: %s plugin [stop|end|fail|close|slow|late rank]\n",
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
  int code =
      argc == 2 ? runTrials(c) : runFault(c, argv[2], std::atoi(argv[3]));
  int rank = c->rank;
  c->api->close(c);
  if (code == 0)
    std::printf("rank %d has closed\n", rank);
  return code;
}
