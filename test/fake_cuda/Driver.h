//===- Driver.h - CUDA's driver without a device ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// libcuda.so.1 for machines without a device. Kernels are those of the fake
/// NVRTC, run on the host. What is asynchronous on a device is deferred here:
/// each call appends to its stream, and work runs when the host waits, in an
/// order that streams and events allow:
///
///   CLEAVE_FAKE_ORDER=earliest  at once (the default)
///   CLEAVE_FAKE_ORDER=latest    only what is waited for, when it is
///   CLEAVE_FAKE_ORDER=SEED      drawn among what may run, and now and then at
///                               calls that do not wait
///
/// Copies read and write pinned host memory when they run. Other host memory
/// is read at the call, and a copy to it is waited for.
///
/// Addresses of the device are not those of the host; calls and the parameters
/// of kernels (each word that is an address) are translated. Pages without
/// access are around each allocation, fresh memory is all ones (NaN), and
/// addresses are not used again. An address that is in no allocation ends the
/// process or gives CUDA_ERROR_ILLEGAL_ADDRESS, then and later.
///
/// CLEAVE_FAKE_QUEUE=N bounds what is under way on a device: a call that would
/// add to N ops waits, as launches do when a queue is full (without end: the
/// default).
///
/// CLEAVE_FAKE_DEVICES, CLEAVE_FAKE_NAME ("Fake"), CLEAVE_FAKE_CAPABILITY
/// ("9.0") and CLEAVE_FAKE_MEMORY (bytes, 1 GiB) describe the devices,
/// CLEAVE_FAKE_DRIVER_VERSION (13000) the driver.
///
/// CLEAVE_FAKE_RECORD=FILE appends a line for each op when it has run:
///
///   stream=2 kind=launch name=add grid=4,1,1 block=256 shared=0
///   stream=2 kind=copy-htod bytes=64 to=0x7000+64 from=0x1000+64
///   stream=2 kind=set bytes=64 to=0x7000+64
///   stream=2 kind=event | wait | host | call | graph
///
/// with graph=1 after the stream for an op of a graph, and fault=NAME:N when a
/// fault was applied. Stream 0 is the legacy one, others count from 1.
///
/// CLEAVE_FAKE_FAULT applies faults, separated by commas; N counts from 1:
///
///   drop-wait:N    the N-th cuStreamWaitEvent does nothing
///   swap-stream:N  the N-th launch goes to another stream
///   grid:N         the N-th launch has one block fewer
///   offset:N       the N-th launch's first pointer is 16 bytes further
///   offset-last:N  its last pointer is
///   barrier:LINE   see Emulation.h
///   skip:N         the N-th launch is left out
///   refuse-launch:N  the N-th launch is an error
///   swap-call:N, skip-call:N  the same of the N-th cleave_fake_enqueue
///
/// The variables of order, record and fault are read at each call: a test may
/// change them. Counts start again when the text of the faults changes.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TEST_FAKE_CUDA_DRIVER_H
#define CLEAVE_TEST_FAKE_CUDA_DRIVER_H

#include "Hooks.h"
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

namespace fake {

using Lock = std::unique_lock<std::mutex>;
using Clock = std::chrono::steady_clock;

constexpr uint64_t deviceOffset = 1ull << 46;
constexpr size_t page = 4096;
constexpr unsigned char fresh = 0xff, slack = 0x6b;
constexpr int maxShared = 232448, defaultShared = 48 << 10;
/// What a kernel that asks for no more can have beside arrays of its own, of
/// which the compiler of the host says nothing.
constexpr int plainShared = 32 << 10;

//===----------------------------------------------------------------------===//
// Ops, streams, events, graphs
//===----------------------------------------------------------------------===//

/// What an op does. It may run many times, in a graph.
struct Action {
  /// Of the record.
  std::string text;
  /// Called with the lock; what it returns is called without it.
  std::function<CUresult(Lock &)> run;
  int stream = 0;
  bool inGraph = false;
  /// May be left out of what is ready until this holds.
  std::function<bool()> ready;
};

struct Op {
  uint64_t number = 0;
  int device = 0;
  std::shared_ptr<const Action> action;
  std::vector<std::shared_ptr<Op>> after, before;
  unsigned missing = 0;
  enum State { Waiting, Running, Done } state = Waiting;
  Clock::time_point time;
};
using OpPtr = std::shared_ptr<Op>;

struct Node {
  std::shared_ptr<const Action> action;
  std::vector<Node *> after;
};
using Nodes = std::vector<std::unique_ptr<Node>>;

struct Stream;
struct Capture {
  Stream *origin = nullptr;
  std::shared_ptr<Nodes> nodes = std::make_shared<Nodes>();
  std::set<Stream *> streams;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  const void *thread = nullptr;
  bool invalid = false, ended = false;
};
using CapturePtr = std::shared_ptr<Capture>;

struct Context {
  int device = 0, uses = 0;
  bool primary = false;
};

struct Stream {
  int id = 0, device = 0, priority = 0;
  unsigned flags = 0;
  OpPtr last;
  CapturePtr capture;
  /// What the next op of a capture comes after.
  std::vector<Node *> tails;
};

struct Event {
  unsigned flags = 0;
  OpPtr op;
  CapturePtr capture;
  std::vector<Node *> nodes;
};

struct Graph {
  std::shared_ptr<Nodes> nodes;
};
struct GraphExec {
  std::shared_ptr<Nodes> nodes;
  OpPtr last;
};

struct Module {
  void *library = nullptr;
  int file = -1;
  /// Emulated kernels of a module share memory.
  std::mutex running;
  std::map<std::string, struct Function *> functions;
};

struct Function {
  std::string name;
  Module *module = nullptr;
  void (*run)(unsigned, unsigned, unsigned, unsigned, unsigned,
              void **) = nullptr;
  unsigned parameters = 0, threads = 1024;
  const unsigned *sizes = nullptr;
  const unsigned char *pointers = nullptr;
  int maxDynamicShared = plainShared;
};

struct Allocation {
  /// Of the host, as all here.
  uint64_t begin = 0, end = 0;
  uint64_t mapped = 0, mappedEnd = 0;
  int device = 0;
};

struct Fault {
  std::string name;
  uint64_t at;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  bool initialised = false;
  CUresult lost = CUDA_SUCCESS;

  uint64_t opCount = 0;
  /// Not done; and those that come after nothing that is not done.
  std::map<uint64_t, OpPtr> pending, ready;
  std::string seed;
  std::mt19937 random;

  int streamCount = 0;
  std::map<int, Stream> legacy;
  std::unordered_set<void *> streams, events, graphs, execs, modules, contexts,
      functions;
  std::map<int, Context> primary;
  std::set<Capture *> captures;

  uint64_t region = 0, regionEnd = 0, regionAt = 0;
  int poison = -1;
  std::map<uint64_t, Allocation> allocations, pinned;
  std::map<int, uint64_t> used;

  std::string faultText;
  std::vector<Fault> faults;
  std::map<std::string, uint64_t> counts;
};

/// Never destroyed: threads may outlive static objects.
State &state();

inline thread_local std::vector<Context *> contextStack;
/// Its address is that of a thread.
inline thread_local char threadMark;
inline thread_local CUstreamCaptureMode threadMode =
    CU_STREAM_CAPTURE_MODE_GLOBAL;
/// What runs on this thread, for the message of a fault.
inline thread_local const char *runningName;

/// A variable that is set and not empty; or null.
const char *environment(const char *name);
[[noreturn]] void die(const std::string &what);

//===----------------------------------------------------------------------===//
// Record and faults
//===----------------------------------------------------------------------===//

/// Appends a line.
void record(const std::string &line);
/// Counts the calls of a kind.
uint64_t countCall(const std::string &counter);
/// Whether a fault is to be applied to the call of this count.
bool isFault(const char *name, uint64_t count);
/// Another stream, for faults: one that captures the same, or does not either.
Stream *otherStream(Stream *stream);

//===----------------------------------------------------------------------===//
// Execution
//===----------------------------------------------------------------------===//

/// Runs ops until `target` is done.
void waitFor(OpPtr target, Lock &lock);
/// Waits for what has been appended.
void waitForDevice(int device, Lock &lock);
/// Runs one op that `target` needs, for a query.
void runOneNeeded(const OpPtr &target, Lock &lock);
OpPtr makeOp(int device, std::shared_ptr<const Action> action,
             const std::vector<OpPtr> &after);
/// What may run at a call that does not wait.
void runSome(Lock &lock);
/// What the next op of a stream comes after.
std::vector<OpPtr> lastOps(Stream *stream);
/// Whether a stream that captures forbids the use of the legacy one.
bool legacyForbidden(Stream *stream);
/// Appends to a stream, or to what it captures. `made` is set to the op, which
/// is null in a capture.
CUresult submit(Stream *stream, Lock &lock, Action action,
                OpPtr *made = nullptr, const std::vector<OpPtr> &more = {});

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

Allocation *find(std::map<uint64_t, Allocation> &all, uint64_t address);
/// Whether an address may be one of a device.
bool inRegion(uint64_t device);
/// The allocation of an address of the device.
Allocation *findDevice(uint64_t device);
/// Ends the process if bytes next to an allocation were written.
void checkSlack(const Allocation &allocation, const char *name);
uint64_t memoryLimit();
std::string hex(uint64_t value);

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

/// Says which kernel or hook touches what it may not.
void installHandler();
bool isDevice(int device);
void capability(int &major, int &minor);
/// The stream of a handle; null if it is none.
Stream *streamOf(void *handle);
/// Whether calls that capture forbids may not be made by this thread.
bool unsafeForbidden();

inline Context *currentContext() {
  return contextStack.empty() ? nullptr : contextStack.back();
}
template <class T> T *checked(std::unordered_set<void *> &all, void *handle) {
  return all.count(handle) ? static_cast<T *>(handle) : nullptr;
}

#define ENTER_ANY()                                                            \
  fake::State &s = fake::state();                                              \
  [[maybe_unused]] fake::Lock lock(s.mutex);                                   \
  if (!s.initialised)                                                          \
    return CUDA_ERROR_NOT_INITIALIZED;
#define ENTER()                                                                \
  ENTER_ANY();                                                                 \
  if (s.lost != CUDA_SUCCESS)                                                  \
    return s.lost;                                                             \
  if (!fake::currentContext())                                                 \
    return CUDA_ERROR_INVALID_CONTEXT;
#define ENTER_STREAM(HANDLE)                                                   \
  ENTER();                                                                     \
  fake::Stream *stream = fake::streamOf(HANDLE);                               \
  if (!stream)                                                                 \
    return CUDA_ERROR_INVALID_HANDLE;
#define CHECK(CONDITION)                                                       \
  if (!(CONDITION))                                                            \
    return CUDA_ERROR_INVALID_VALUE;
#define UNSAFE()                                                               \
  if (fake::unsafeForbidden())                                                 \
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;

#define EXPORT extern "C" __attribute__((visibility("default")))

} // namespace fake

#endif // CLEAVE_TEST_FAKE_CUDA_DRIVER_H
