//===- NcclState.h - Communicators, and exchanges under way -----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TEST_FAKE_CUDA_NCCLSTATE_H
#define CLEAVE_TEST_FAKE_CUDA_NCCLSTATE_H

#include "../Hooks.h"
#include "NcclBoard.h"
#include "NcclElements.h"
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace fake::nccl {

enum Result {
  Success = 0,
  UnhandledCudaError = 1,
  InternalError = 3,
  InvalidArgument = 4,
  InvalidUsage = 5,
  RemoteError = 6,
  InProgress = 7
};
enum Kind {
  AllReduce,
  AllGather,
  ReduceScatter,
  Broadcast,
  Reduce,
  Send,
  Receive
};
inline const char *const kindNames[] = {
    "all-reduce", "all-gather", "reduce-scatter", "broadcast",
    "reduce",     "send",       "receive"};

/// The fake driver's functions.
struct Driver {
  decltype(&cleave_fake_enqueue_op) enqueue = nullptr;
  decltype(&cleave_fake_host) host = nullptr;
  decltype(&cleave_fake_room) room = nullptr;
  int (*device)(int *) = nullptr;
  int (*uuid)(char *, int) = nullptr;
  int (*synchronize)() = nullptr;
  int (*allocate)(uint64_t *, size_t) = nullptr;
  int (*free)(uint64_t) = nullptr;
};

/// That of the folder of this library; null if it lacks something.
const Driver *driver();

struct Id {
  char bytes[128];
};

struct Call {
  Kind kind;
  const char *src = nullptr;
  char *dst = nullptr;
  size_t count = 0;
  int type = 0, operation = 0, peer = 0;

  std::string text() const {
    return std::string(kindNames[kind]) + " of " + std::to_string(count) +
           " elements of " + typeNames[type];
  }
};

struct Clique;

/// What takes part in one exchange: a call of each member, or both ends of a
/// message.
struct Exchange {
  std::map<int, Call> calls;
  std::set<int> arrived;
  size_t members = 0;
  bool done = false;
  /// Between processes: what it is called on the board, and who else takes
  /// part; only the call of this member is among those above.
  std::string name;
  std::vector<int> others;
};

struct Communicator {
  std::shared_ptr<Clique> clique;
  int member = 0, device = 0;
  bool aborted = false, finalized = false;
  int error = Success;
  /// Of the device.
  uint64_t memory = 0, bytes = 0;
  /// The number of collectives so far, and of messages by sender and receiver.
  size_t collectives = 0;
  std::map<std::pair<int, int>, size_t> messages;
};
using CommunicatorPtr = std::shared_ptr<Communicator>;

/// All members of one identity that this process has.
struct Clique {
  int members = 0, joined = 0, finalized = 0, ended = 0;
  std::string name;
  std::unique_ptr<fake::Board> board;
  /// Whether all have joined, and whether some are in other processes.
  bool connected = false, spread = false;
  /// Success, or why they may not be connected.
  int refusal = Success;
  /// By sender and receiver, or -1 for collectives, and number.
  std::map<std::tuple<int, int, size_t>, std::shared_ptr<Exchange>> exchanges;
};

/// The calls of a group on one stream.
struct Op {
  std::vector<std::tuple<CommunicatorPtr, std::shared_ptr<Exchange>>> parts;
  /// Whether a fault keeps it from being reached.
  bool hangs = false;
};

struct Group {
  int depth = 0;
  int error = Success;
  bool hangs = false;
  std::vector<std::tuple<CommunicatorPtr, void *, Call>> calls;
  /// Destroyed or aborted.
  std::vector<CommunicatorPtr> ended;
};

using Clock = std::chrono::steady_clock;

struct State {
  std::mutex mutex;
  size_t ids = 0;
  std::map<std::string, std::shared_ptr<Clique>> cliques;
  std::map<void *, CommunicatorPtr> communicators;
  std::map<int, size_t> calls;
  /// Ops that were reached and wait for others.
  std::set<const Op *> waiting;
  /// When an exchange was last begun or ended.
  Clock::time_point moved = Clock::now();
};

State &state();

/// Of this thread.
extern thread_local Group group;

/// Ends the process with a message.
[[noreturn]] void die(const std::string &what);

/// Whether the fault of this name is for the `count`-th call of a device.
bool isFault(const char *name, int device, size_t count);

/// The communicator of a handle; null if there is none.
CommunicatorPtr find(void *handle);

} // namespace fake::nccl

#endif // CLEAVE_TEST_FAKE_CUDA_NCCLSTATE_H
