//===- FakeDriver.cpp - CUDA's driver without a device --------------------===//
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
/// CLEAVE_FAKE_DEVICES, CLEAVE_FAKE_CAPABILITY ("9.0") and CLEAVE_FAKE_MEMORY
/// (bytes, 1 GiB) describe the devices.
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
///   skip:N         the N-th launch is left out
///   swap-call:N, skip-call:N  the same of the N-th cleave_fake_enqueue
///
/// The variables of order, record and fault are read at each call: a test may
/// change them. Counts start again when the text of the faults changes.
///
//===----------------------------------------------------------------------===//

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <unordered_set>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Lock = std::unique_lock<std::mutex>;
using Clock = std::chrono::steady_clock;

constexpr uint64_t deviceOffset = 1ull << 46;
constexpr size_t page = 4096;
constexpr unsigned char fresh = 0xff, slack = 0x6b;
constexpr int maxShared = 232448, defaultShared = 48 << 10;

const char *environment(const char *name) {
  const char *value = std::getenv(name);
  return value && *value ? value : nullptr;
}

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
  int maxDynamicShared = defaultShared;
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
State &state() {
  static State &state = *new State;
  return state;
}

thread_local std::vector<Context *> contextStack;
thread_local char threadMark;
thread_local CUstreamCaptureMode threadMode = CU_STREAM_CAPTURE_MODE_GLOBAL;
/// What runs on this thread, for the message of a fault.
thread_local const char *runningName;

[[noreturn]] void die(const std::string &what) {
  std::fprintf(stderr, "emulated kernel %s\n", what.c_str());
  std::abort();
}

void record(const std::string &line) {
  const char *path = environment("CLEAVE_FAKE_RECORD");
  if (!path)
    return;
  int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0)
    return;
  std::string text = line + "\n";
  [[maybe_unused]] ssize_t n = write(file, text.data(), text.size());
  close(file);
}

/// Whether the call that this counts is the one of a fault. `counter` is
/// counted once for all faults of it.
uint64_t countCall(const std::string &counter) {
  State &s = state();
  const char *text = environment("CLEAVE_FAKE_FAULT");
  if (s.faultText != (text ? text : "")) {
    s.faultText = text ? text : "";
    s.counts.clear();
    s.faults.clear();
    for (size_t at = 0; at < s.faultText.size();) {
      size_t end = std::min(s.faultText.find(',', at), s.faultText.size());
      std::string one = s.faultText.substr(at, end - at);
      size_t colon = one.find(':');
      if (colon != std::string::npos)
        s.faults.push_back(
            {one.substr(0, colon),
             std::strtoull(one.c_str() + colon + 1, nullptr, 10)});
      at = end + 1;
    }
  }
  return ++s.counts[counter];
}
bool isFault(const char *name, uint64_t count) {
  for (const Fault &fault : state().faults)
    if (fault.name == name && fault.at == count) {
      record("fault=" + fault.name + ":" + std::to_string(count));
      return true;
    }
  return false;
}

enum class Order { Earliest, Latest, Drawn };
Order order() {
  const char *text = environment("CLEAVE_FAKE_ORDER");
  if (!text || !std::strcmp(text, "earliest"))
    return Order::Earliest;
  if (!std::strcmp(text, "latest"))
    return Order::Latest;
  State &s = state();
  if (s.seed != text) {
    s.seed = text;
    s.random.seed(std::strtoul(text, nullptr, 10));
  }
  return Order::Drawn;
}

//===----------------------------------------------------------------------===//
// Execution
//===----------------------------------------------------------------------===//

void finish(const OpPtr &op) {
  State &s = state();
  op->state = Op::Done;
  op->time = Clock::now();
  s.pending.erase(op->number);
  for (const OpPtr &next : op->before)
    if (--next->missing == 0)
      s.ready[next->number] = next;
  op->before.clear();
  op->after.clear();
  op->action.reset();
  s.changed.notify_all();
}

void execute(OpPtr op, Lock &lock) {
  State &s = state();
  op->state = Op::Running;
  s.ready.erase(op->number);
  std::shared_ptr<const Action> action = op->action;
  if (action && action->run && s.lost == CUDA_SUCCESS) {
    CUresult result = action->run(lock);
    if (result != CUDA_SUCCESS && s.lost == CUDA_SUCCESS)
      s.lost = result;
  }
  if (action && !action->text.empty())
    record("stream=" + std::to_string(action->stream) +
           (action->inGraph ? " graph=1 " : " ") + action->text);
  finish(op);
}

bool mayRun(const Op &op) {
  return op.missing == 0 && op.state == Op::Waiting &&
         (!op.action || !op.action->ready || op.action->ready());
}

/// Any op that may run: a drawn one, or the first; null if there is none.
OpPtr anyReady(Order how) {
  State &s = state();
  size_t count = s.ready.size();
  if (!count)
    return nullptr;
  auto it = s.ready.begin();
  if (how == Order::Drawn)
    std::advance(it, s.random() % count);
  for (size_t i = 0; i < count; ++i) {
    if (mayRun(*it->second))
      return it->second;
    if (++it == s.ready.end())
      it = s.ready.begin();
  }
  return nullptr;
}

/// Of the ops that `target` comes after, and it, one that may run.
OpPtr neededReady(const OpPtr &target) {
  std::vector<OpPtr> path{target};
  std::unordered_set<Op *> seen;
  while (!path.empty()) {
    OpPtr op = path.back();
    if (mayRun(*op))
      return op;
    OpPtr next;
    for (const OpPtr &other : op->after)
      if (other->state != Op::Done && seen.insert(other.get()).second) {
        next = other;
        break;
      }
    if (next)
      path.push_back(next);
    else
      path.pop_back();
  }
  return nullptr;
}

/// Runs ops until `target` is done.
void waitFor(OpPtr target, Lock &lock) {
  if (!target)
    return;
  Order how = order();
  if (how == Order::Latest) {
    // Depth first. What cannot run now leaves the rest to the loop below.
    std::vector<OpPtr> path{target};
    while (!path.empty()) {
      OpPtr op = path.back();
      if (op->state == Op::Done) {
        path.pop_back();
        continue;
      }
      OpPtr next;
      for (const OpPtr &other : op->after)
        if (other->state != Op::Done) {
          next = other;
          break;
        }
      if (next)
        path.push_back(next);
      else if (mayRun(*op))
        execute(op, lock);
      else
        break;
    }
  }
  while (target->state != Op::Done) {
    OpPtr op = how == Order::Latest ? neededReady(target) : anyReady(how);
    if (op) {
      execute(op, lock);
      continue;
    }
    // Other threads run what is needed, or what they append makes it ready.
    // They may wait for what this one has not run.
    auto status = state().changed.wait_for(lock, std::chrono::milliseconds(20));
    if (target->state != Op::Done && status == std::cv_status::timeout)
      if (OpPtr other = anyReady(how))
        execute(other, lock);
  }
}

/// Runs one op that `target` needs, for a query.
void runOneNeeded(const OpPtr &target, Lock &lock) {
  OpPtr op = order() == Order::Drawn ? anyReady(Order::Drawn) : nullptr;
  if (!op)
    op = neededReady(target);
  if (op)
    execute(op, lock);
}

/// What others append meanwhile is not waited for.
void waitForDevice(int device, Lock &lock) {
  std::vector<OpPtr> all;
  for (const auto &[number, op] : state().pending)
    if (op->device == device)
      all.push_back(op);
  for (const OpPtr &op : all)
    waitFor(op, lock);
}

OpPtr makeOp(int device, std::shared_ptr<const Action> action,
             const std::vector<OpPtr> &after) {
  State &s = state();
  OpPtr op = std::make_shared<Op>();
  op->number = ++s.opCount;
  op->device = device;
  op->action = std::move(action);
  for (const OpPtr &other : after)
    if (other && other->state != Op::Done &&
        std::find(op->after.begin(), op->after.end(), other) ==
            op->after.end()) {
      op->after.push_back(other);
      other->before.push_back(op);
      ++op->missing;
    }
  s.pending[op->number] = op;
  if (!op->missing)
    s.ready[op->number] = op;
  s.changed.notify_all();
  return op;
}

/// What may run at a call that does not wait.
void runSome(Lock &lock) {
  Order how = order();
  if (how == Order::Latest)
    return;
  State &s = state();
  int most = how == Order::Earliest ? 1 << 30
             : s.random() % 2       ? 0
                                    : s.random() % 4;
  for (; most > 0; --most) {
    OpPtr op = anyReady(how);
    if (!op)
      return;
    execute(op, lock);
  }
}

/// What the next op of a stream comes after.
std::vector<OpPtr> lastOps(Stream *stream) {
  State &s = state();
  std::vector<OpPtr> result{stream->last};
  if (stream->id == 0) {
    for (void *other : s.streams) {
      auto *blocking = static_cast<Stream *>(other);
      if (blocking->device == stream->device &&
          !(blocking->flags & CU_STREAM_NON_BLOCKING))
        result.push_back(blocking->last);
    }
  } else if (!(stream->flags & CU_STREAM_NON_BLOCKING)) {
    result.push_back(s.legacy[stream->device].last);
  }
  return result;
}

/// Whether a stream that captures forbids the use of the legacy one.
bool legacyForbidden(Stream *stream) {
  if (stream->id != 0)
    return false;
  for (void *other : state().streams) {
    auto *blocking = static_cast<Stream *>(other);
    if (blocking->capture && blocking->device == stream->device &&
        !(blocking->flags & CU_STREAM_NON_BLOCKING)) {
      blocking->capture->invalid = true;
      return true;
    }
  }
  return false;
}

/// Appends to a stream, or to what it captures. `made` is set to the op, which
/// is null in a capture.
CUresult submit(Stream *stream, Lock &lock, Action action,
                OpPtr *made = nullptr, const std::vector<OpPtr> &more = {}) {
  action.stream = stream->id;
  if (legacyForbidden(stream))
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (stream->capture) {
    if (stream->capture->invalid)
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    action.inGraph = true;
    auto node = std::make_unique<Node>();
    node->action = std::make_shared<Action>(std::move(action));
    node->after = stream->tails;
    stream->tails = {node.get()};
    stream->capture->nodes->push_back(std::move(node));
    return CUDA_SUCCESS;
  }
  std::vector<OpPtr> after = lastOps(stream);
  after.insert(after.end(), more.begin(), more.end());
  OpPtr op = makeOp(stream->device, std::make_shared<Action>(std::move(action)),
                    after);
  stream->last = op;
  if (made)
    *made = op;
  runSome(lock);
  return state().lost;
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

Allocation *find(std::map<uint64_t, Allocation> &all, uint64_t address) {
  auto it = all.upper_bound(address);
  if (it == all.begin())
    return nullptr;
  --it;
  return address < it->second.end ? &it->second : nullptr;
}

bool inRegion(uint64_t device) {
  State &s = state();
  return device >= s.region + deviceOffset &&
         device < s.regionEnd + deviceOffset && s.region;
}
/// The allocation of an address of the device.
Allocation *findDevice(uint64_t device) {
  return inRegion(device) ? find(state().allocations, device - deviceOffset)
                          : nullptr;
}
bool isDeviceRange(uint64_t device, size_t bytes) {
  Allocation *found = findDevice(device);
  return found && bytes <= found->end - (device - deviceOffset);
}
bool isPinned(const void *host, size_t bytes) {
  auto at = reinterpret_cast<uint64_t>(host);
  Allocation *found = find(state().pinned, at);
  return found && bytes <= found->end - at;
}

void checkSlack(const Allocation &allocation, const char *name) {
  auto touched = [](uint64_t begin, uint64_t end) {
    for (uint64_t at = begin; at < end; ++at)
      if (*reinterpret_cast<unsigned char *>(at) != slack)
        return true;
    return false;
  };
  if (touched(allocation.end, allocation.mappedEnd))
    die(std::string(name) + ": wrote behind a buffer");
  if (touched(std::max(allocation.mapped, allocation.begin - 64),
              allocation.begin))
    die(std::string(name) + ": wrote before a buffer");
}

bool reserveRegion() {
  State &s = state();
  if (s.region)
    return true;
  for (uint64_t size = 1ull << 43; size >= 1ull << 32; size >>= 1) {
    void *at = mmap(nullptr, size, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at != MAP_FAILED) {
      s.region = s.regionAt = reinterpret_cast<uint64_t>(at);
      s.regionEnd = s.region + size;
      return true;
    }
  }
  return false;
}

/// Where `bytes` of the region, whole pages, are free. Addresses are used again
/// only when all have been used.
uint64_t takeAddress(uint64_t bytes) {
  State &s = state();
  uint64_t need = bytes + 2 * page;
  if (s.regionEnd - s.regionAt >= need) {
    uint64_t at = s.regionAt + page;
    s.regionAt += need;
    return at;
  }
  uint64_t at = s.region;
  for (const auto &[begin, allocation] : s.allocations) {
    if (allocation.mapped - at >= need && allocation.mapped > at)
      return at + page;
    at = allocation.mappedEnd;
  }
  return s.regionEnd - at >= need ? at + page : 0;
}

/// Fills fresh memory. Large memory is mapped to a file of such bytes, so that
/// what is not used takes none.
bool mapFresh(uint64_t at, uint64_t bytes) {
  constexpr uint64_t chunk = 16 << 20;
  State &s = state();
  if (bytes >= chunk && s.poison < 0) {
    s.poison = memfd_create("cleave-fake-fresh", MFD_CLOEXEC);
    std::vector<char> ones(chunk, char(fresh));
    if (s.poison >= 0 &&
        write(s.poison, ones.data(), chunk) != ssize_t(chunk)) {
      close(s.poison);
      s.poison = -1;
    }
  }
  if (bytes >= chunk && s.poison >= 0) {
    for (uint64_t i = 0; i < bytes; i += chunk)
      if (mmap(reinterpret_cast<void *>(at + i), std::min(chunk, bytes - i),
               PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, s.poison,
               0) == MAP_FAILED)
        return false;
    return true;
  }
  void *memory =
      mmap(reinterpret_cast<void *>(at), bytes, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (memory == MAP_FAILED)
    return false;
  std::memset(memory, fresh, bytes);
  return true;
}

void unmap(const Allocation &allocation) {
  mmap(reinterpret_cast<void *>(allocation.mapped),
       allocation.mappedEnd - allocation.mapped, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

uint64_t memoryLimit() {
  const char *text = environment("CLEAVE_FAKE_MEMORY");
  return text ? std::strtoull(text, nullptr, 10) : 1ull << 30;
}

CUresult allocate(int device, size_t bytes, CUdeviceptr *result) {
  State &s = state();
  if (!bytes)
    return CUDA_ERROR_INVALID_VALUE;
  if (bytes > memoryLimit() || s.used[device] + bytes > memoryLimit() ||
      !reserveRegion())
    return CUDA_ERROR_OUT_OF_MEMORY;
  uint64_t rounded = (bytes + 255) / 256 * 256;
  uint64_t pages = (rounded + page - 1) / page * page;
  uint64_t at = takeAddress(pages);
  if (!at || !mapFresh(at, pages))
    return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation allocation;
  allocation.mapped = at;
  allocation.mappedEnd = at + pages;
  allocation.begin = at + pages - rounded;
  allocation.end = allocation.begin + bytes;
  allocation.device = device;
  std::memset(reinterpret_cast<void *>(allocation.mapped), slack,
              allocation.begin - allocation.mapped);
  std::memset(reinterpret_cast<void *>(allocation.end), slack,
              allocation.mappedEnd - allocation.end);
  s.used[device] += bytes;
  s.allocations[allocation.begin] = allocation;
  *result = allocation.begin + deviceOffset;
  return CUDA_SUCCESS;
}

CUresult release(CUdeviceptr device) {
  State &s = state();
  Allocation *found = findDevice(device);
  if (!found || found->begin + deviceOffset != device)
    return CUDA_ERROR_INVALID_VALUE;
  checkSlack(*found, "(some)");
  s.used[found->device] -= found->end - found->begin;
  unmap(*found);
  s.allocations.erase(found->begin);
  return CUDA_SUCCESS;
}

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

struct sigaction previousAction;

/// Says which kernel touched what it may not; others' faults are others'.
void onFault(int number, siginfo_t *info, void *context) {
  if (runningName) {
    uint64_t at = reinterpret_cast<uint64_t>(info->si_addr);
    State &s = state();
    bool device = at >= s.region && at < s.regionEnd;
    char text[256];
    int n = std::snprintf(
        text, sizeof text,
        "emulated kernel %s: touches memory outside of any buffer at %s%#llx\n",
        runningName, device ? "device address " : "",
        static_cast<unsigned long long>(device ? at + deviceOffset : at));
    [[maybe_unused]] ssize_t written = write(2, text, n);
    std::signal(SIGABRT, SIG_DFL);
    std::abort();
  }
  if (previousAction.sa_flags & SA_SIGINFO)
    return previousAction.sa_sigaction(number, info, context);
  if (previousAction.sa_handler != SIG_DFL &&
      previousAction.sa_handler != SIG_IGN)
    return previousAction.sa_handler(number);
  std::signal(number, SIG_DFL);
}

void installHandler() {
  struct sigaction now;
  sigaction(SIGSEGV, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == onFault)
    return;
  struct sigaction action = {};
  action.sa_sigaction = onFault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &previousAction);
}

struct Parameters {
  std::vector<size_t> offsets;
  std::vector<uint64_t> words;
};

std::string hex(uint64_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "%#llx",
                static_cast<unsigned long long>(value));
  return text;
}

/// Translates the addresses among the parameters of a kernel. Says and returns
/// false if one is of no allocation.
bool translate(const Function &function, Parameters &parameters,
               std::vector<Allocation> *used, uint64_t offset) {
  State &s = state();
  for (unsigned i = 0; i < function.parameters; ++i) {
    size_t begin = parameters.offsets[i];
    for (size_t at = 0; at + 8 <= function.sizes[i]; at += 8) {
      uint64_t &word = parameters.words[(begin + at) / 8];
      bool pointer = function.pointers[i];
      if (!pointer && !inRegion(word))
        continue;
      if (!word)
        continue;
      Allocation *found = findDevice(word);
      if (!found) {
        if (find(s.pinned, word))
          continue;
        std::fprintf(stderr,
                     "emulated kernel %s: parameter %u is no address in any "
                     "buffer: %s\n",
                     function.name.c_str(), i, hex(word).c_str());
        return false;
      }
      if (used)
        used->push_back(*found);
      word = word - deviceOffset + offset;
      offset = 0;
    }
  }
  return true;
}

CUresult runKernel(Function *function, Parameters parameters, unsigned gridX,
                   unsigned gridY, unsigned gridZ, unsigned block,
                   unsigned shared, uint64_t offset, Lock &lock) {
  std::vector<Allocation> used;
  if (!translate(*function, parameters, &used, offset))
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  std::vector<void *> pointers;
  for (size_t at : parameters.offsets)
    pointers.push_back(parameters.words.data() + at / 8);
  installHandler();
  lock.unlock();
  {
    std::lock_guard<std::mutex> one(function->module->running);
    runningName = function->name.c_str();
    function->run(gridX, gridY, gridZ, block, shared, pointers.data());
    runningName = nullptr;
  }
  lock.lock();
  for (const Allocation &allocation : used)
    if (state().allocations.count(allocation.begin))
      checkSlack(allocation, function->name.c_str());
  return CUDA_SUCCESS;
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

template <class T> T *checked(std::unordered_set<void *> &all, void *handle) {
  return all.count(handle) ? static_cast<T *>(handle) : nullptr;
}

Context *currentContext() {
  return contextStack.empty() ? nullptr : contextStack.back();
}

/// The stream of a handle; null if it is none.
Stream *streamOf(void *handle) {
  State &s = state();
  if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    Stream &legacy = s.legacy[currentContext()->device];
    legacy.device = currentContext()->device;
    return &legacy;
  }
  return checked<Stream>(s.streams, handle);
}

/// Whether calls that capture forbids may be made by this thread.
bool unsafeForbidden() {
  if (threadMode == CU_STREAM_CAPTURE_MODE_RELAXED)
    return false;
  for (Capture *capture : state().captures) {
    bool own = capture->thread == &threadMark;
    if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
      continue;
    if (own || (capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                threadMode == CU_STREAM_CAPTURE_MODE_GLOBAL)) {
      capture->invalid = true;
      return true;
    }
  }
  return false;
}

#define ENTER_ANY()                                                            \
  State &s = state();                                                          \
  [[maybe_unused]] Lock lock(s.mutex);                                         \
  if (!s.initialised)                                                          \
    return CUDA_ERROR_NOT_INITIALIZED;
#define ENTER()                                                                \
  ENTER_ANY();                                                                 \
  if (s.lost != CUDA_SUCCESS)                                                  \
    return s.lost;                                                             \
  if (!currentContext())                                                       \
    return CUDA_ERROR_INVALID_CONTEXT;
#define ENTER_STREAM(HANDLE)                                                   \
  ENTER();                                                                     \
  Stream *stream = streamOf(HANDLE);                                           \
  if (!stream)                                                                 \
    return CUDA_ERROR_INVALID_HANDLE;
#define CHECK(CONDITION)                                                       \
  if (!(CONDITION))                                                            \
    return CUDA_ERROR_INVALID_VALUE;
#define UNSAFE()                                                               \
  if (unsafeForbidden())                                                       \
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;

bool isDevice(int device) {
  const char *text = environment("CLEAVE_FAKE_DEVICES");
  return device >= 0 && device < (text ? std::atoi(text) : 1);
}

void capability(int &major, int &minor) {
  major = 9, minor = 0;
  if (const char *text = environment("CLEAVE_FAKE_CAPABILITY"))
    std::sscanf(text, "%d.%d", &major, &minor);
}

struct Place {
  uint64_t address;
  bool device;
};

std::string range(const Place &place, size_t bytes) {
  return hex(place.address) + "+" + std::to_string(bytes);
}

/// A copy of any kind. Places of the host are as given.
CUresult copy(Stream *stream, Lock &lock, Place to, Place from, size_t bytes,
              bool sync) {
  if (!bytes)
    return CUDA_SUCCESS;
  for (const Place &place : {to, from})
    if (place.device ? !isDeviceRange(place.address, bytes) : !place.address)
      return CUDA_ERROR_INVALID_VALUE;
  bool staged = !from.device && !stream->capture &&
                !isPinned(reinterpret_cast<void *>(from.address), bytes);
  std::shared_ptr<std::vector<char>> stage;
  if (staged) {
    auto *source = reinterpret_cast<const char *>(from.address);
    stage = std::make_shared<std::vector<char>>(source, source + bytes);
  }
  if (!to.device && !stream->capture &&
      !isPinned(reinterpret_cast<void *>(to.address), bytes))
    sync = true;
  Action action;
  action.text = std::string("kind=copy-") + (from.device ? "d" : "h") + "to" +
                (to.device ? "d" : "h") + " bytes=" + std::to_string(bytes) +
                " to=" + range(to, bytes) + " from=" + range(from, bytes);
  action.run = [=](Lock &) {
    for (const Place &place : {to, from})
      if (place.device && !isDeviceRange(place.address, bytes)) {
        std::fprintf(stderr, "a copy of memory that was freed\n");
        return CUDA_ERROR_ILLEGAL_ADDRESS;
      }
    auto host = [](const Place &place) {
      return reinterpret_cast<char *>(place.address -
                                      (place.device ? deviceOffset : 0));
    };
    std::memmove(host(to), stage ? stage->data() : host(from), bytes);
    return CUDA_SUCCESS;
  };
  OpPtr op;
  CUresult result = submit(stream, lock, std::move(action), &op);
  if (result != CUDA_SUCCESS)
    return result;
  if (sync)
    waitFor(op, lock);
  return state().lost;
}

Place onDevice(CUdeviceptr address) { return {address, true}; }
Place onHost(const void *address) {
  return {reinterpret_cast<uint64_t>(address), false};
}
Place anywhere(CUdeviceptr address) { return {address, inRegion(address)}; }

template <class T>
CUresult fill(Stream *stream, Lock &lock, CUdeviceptr to, T value,
              size_t count) {
  if (to % sizeof(T))
    return CUDA_ERROR_INVALID_VALUE;
  if (!count)
    return CUDA_SUCCESS;
  if (!isDeviceRange(to, count * sizeof(T)))
    return CUDA_ERROR_INVALID_VALUE;
  Action action;
  size_t bytes = count * sizeof(T);
  action.text = "kind=set bytes=" + std::to_string(bytes) +
                " to=" + range(onDevice(to), bytes);
  action.run = [=](Lock &) {
    if (!isDeviceRange(to, bytes))
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    std::fill_n(reinterpret_cast<T *>(to - deviceOffset), count, value);
    return CUDA_SUCCESS;
  };
  return submit(stream, lock, std::move(action));
}

/// Another stream, for faults: one that captures the same, or does not either.
Stream *otherStream(Stream *stream) {
  State &s = state();
  Stream *best = nullptr;
  for (void *other : s.streams) {
    auto *candidate = static_cast<Stream *>(other);
    if (candidate != stream && candidate->capture == stream->capture &&
        candidate->device == stream->device &&
        (!best || candidate->id < best->id))
      best = candidate;
  }
  return best ? best : stream;
}

size_t imageBytes(const void *image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  return header.e_shoff + size_t(header.e_shnum) * header.e_shentsize;
}

template <class T> T symbol(void *library, const std::string &name) {
  return reinterpret_cast<T>(dlsym(library, name.c_str()));
}

CUresult loadModule(CUmodule *module, const void *image) {
  State &s = state();
  if (!module || !image)
    return CUDA_ERROR_INVALID_VALUE;
  if (std::memcmp(image, ELFMAG, SELFMAG))
    return CUDA_ERROR_INVALID_IMAGE;
  int file = memfd_create("cleave-fake-module", MFD_CLOEXEC);
  size_t bytes = imageBytes(image);
  auto *from = static_cast<const char *>(image);
  for (size_t at = 0; at < bytes;) {
    ssize_t n = write(file, from + at, bytes - at);
    if (n <= 0) {
      close(file);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    at += n;
  }
  std::string path = "/proc/self/fd/" + std::to_string(file);
  void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const int *architecture =
      library ? symbol<const int *>(library, "cleave_host_architecture")
              : nullptr;
  if (!architecture) {
    if (library)
      dlclose(library);
    close(file);
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  int major, minor;
  capability(major, minor);
  if (*architecture / 10 != major || *architecture % 10 > minor) {
    dlclose(library);
    close(file);
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  auto *made = new Module;
  made->library = library;
  // Open until it is unloaded: the name of a library that is loaded must not
  // be that of another.
  made->file = file;
  s.modules.insert(made);
  *module = reinterpret_cast<CUmodule>(made);
  return CUDA_SUCCESS;
}

} // namespace

//===----------------------------------------------------------------------===//
// Hooks
//===----------------------------------------------------------------------===//

/// Where an address of the device is in the host's memory; null if nowhere.
EXPORT void *cleave_fake_host(uint64_t device) {
  Lock lock(state().mutex);
  return findDevice(device) ? reinterpret_cast<void *>(device - deviceOffset)
                            : nullptr;
}

/// The bytes from an address of the device to the end of its allocation.
EXPORT uint64_t cleave_fake_room(uint64_t device) {
  Lock lock(state().mutex);
  Allocation *found = findDevice(device);
  return found ? found->end - (device - deviceOffset) : 0;
}

/// Appends `run(data)` to a stream; `drop(data)` follows the last run, which in
/// a graph may be none. `text` is for the record, as "gemm m=8", and for the
/// message of a fault. `ready(data)`, where given, keeps the op from its turn
/// until it holds; it is called with the driver locked.
EXPORT int cleave_fake_enqueue_op(void *handle, const char *text,
                                  bool (*ready)(void *), void (*run)(void *),
                                  void *data, void (*drop)(void *)) {
  std::shared_ptr<void> kept(data, [drop](void *data) {
    if (drop)
      drop(data);
  });
  ENTER_STREAM(handle);
  uint64_t count = countCall("call");
  if (isFault("skip-call", count))
    return CUDA_SUCCESS;
  if (isFault("swap-call", count))
    stream = otherStream(stream);
  Action action;
  action.text = std::string("kind=call name=") + text;
  if (ready)
    action.ready = [=] { return ready(kept.get()); };
  action.run = [kept, run, name = std::string(text)](Lock &lock) {
    installHandler();
    lock.unlock();
    runningName = name.c_str();
    run(kept.get());
    runningName = nullptr;
    lock.lock();
    return CUDA_SUCCESS;
  };
  return submit(stream, lock, std::move(action));
}

EXPORT int cleave_fake_enqueue(void *stream, void (*run)(void *), void *data,
                               void (*drop)(void *)) {
  return cleave_fake_enqueue_op(stream, "unnamed", nullptr, run, data, drop);
}

//===----------------------------------------------------------------------===//
// Devices and contexts
//===----------------------------------------------------------------------===//

EXPORT CUresult cuInit(unsigned flags) {
  CHECK(flags == 0);
  Lock lock(state().mutex);
  if (const char *text = environment("CLEAVE_FAKE_DEVICES");
      text && std::atoi(text) == 0)
    return CUDA_ERROR_NO_DEVICE;
  state().initialised = true;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version) {
  CHECK(version);
  *version = 13000;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
  ENTER_ANY();
  CHECK(count);
  for (*count = 0; isDevice(*count);)
    ++*count;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  ENTER_ANY();
  CHECK(device);
  if (!isDevice(ordinal))
    return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
  ENTER_ANY();
  CHECK(name && size > 0);
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, size, "Fake");
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  ENTER_ANY();
  CHECK(uuid);
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  std::memset(uuid, 0, sizeof *uuid);
  std::memcpy(uuid, "fake", 4);
  uuid->bytes[15] = char(device);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *id, int size, CUdevice device) {
  ENTER_ANY();
  CHECK(id && size > 12);
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(id, size, "0000:%02x:00.0", device + 1);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  ENTER_ANY();
  CHECK(bytes);
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  *bytes = memoryLimit();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute,
                                     CUdevice device) {
  ENTER_ANY();
  CHECK(value);
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  int major, minor;
  capability(major, minor);
  switch (attribute) {
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
    *value = major;
    break;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
    *value = minor;
    break;
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
    *value = 132;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
    *value = 1024;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
    *value = 64;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
    *value = 0x7fffffff;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
  case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
    *value = 65535;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
    *value = defaultShared;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
    *value = maxShared;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
    *value = 233472;
    break;
  case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
    *value = 1024;
    break;
  case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
    *value = 32;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
    *value = 2048;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
    *value = 32;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
  case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
    *value = 65536;
    break;
  case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
    *value = 1980000;
    break;
  case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
    *value = 2619000;
    break;
  case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
    *value = 5120;
    break;
  case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
    *value = 50 << 20;
    break;
  case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
    *value = 65536;
    break;
  case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
    *value = 3;
    break;
  case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
    *value = 512;
    break;
  case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
  case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
  case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
  case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
  case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    *value = 1;
    break;
  default:
    *value = 0;
  }
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device,
                                      CUdevice peer) {
  ENTER_ANY();
  CHECK(can);
  if (!isDevice(device) || !isDevice(peer))
    return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext, unsigned) {
  ENTER();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  ENTER_ANY();
  CHECK(context);
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  Context &primary = s.primary[device];
  primary.device = device;
  primary.primary = true;
  ++primary.uses;
  s.contexts.insert(&primary);
  *context = reinterpret_cast<CUcontext>(&primary);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  ENTER_ANY();
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  Context &primary = s.primary[device];
  if (primary.uses == 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (--primary.uses == 0)
    waitForDevice(device, lock);
  return CUDA_SUCCESS;
}

/// A context that was lost can be used again.
EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  ENTER_ANY();
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  waitForDevice(device, lock);
  s.lost = CUDA_SUCCESS;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice, unsigned) {
  ENTER_ANY();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags,
                                           int *active) {
  ENTER_ANY();
  CHECK(flags && active);
  *flags = 0;
  *active = s.primary[device].uses > 0;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *,
                               unsigned, CUdevice device) {
  ENTER_ANY();
  CHECK(context);
  if (!isDevice(device))
    return CUDA_ERROR_INVALID_DEVICE;
  auto *made = new Context;
  made->device = device;
  s.contexts.insert(made);
  contextStack.push_back(made);
  *context = reinterpret_cast<CUcontext>(made);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext handle) {
  ENTER_ANY();
  auto *context = checked<Context>(s.contexts, handle);
  if (!context || context->primary)
    return CUDA_ERROR_INVALID_CONTEXT;
  waitForDevice(context->device, lock);
  if (currentContext() == context)
    contextStack.pop_back();
  s.contexts.erase(context);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext handle) {
  ENTER_ANY();
  if (handle && !checked<Context>(s.contexts, handle))
    return CUDA_ERROR_INVALID_CONTEXT;
  if (!contextStack.empty())
    contextStack.pop_back();
  if (handle)
    contextStack.push_back(reinterpret_cast<Context *>(handle));
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *handle) {
  ENTER_ANY();
  CHECK(handle);
  *handle = reinterpret_cast<CUcontext>(currentContext());
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  ENTER_ANY();
  if (!checked<Context>(s.contexts, handle))
    return CUDA_ERROR_INVALID_CONTEXT;
  contextStack.push_back(reinterpret_cast<Context *>(handle));
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *handle) {
  ENTER_ANY();
  if (contextStack.empty())
    return CUDA_ERROR_INVALID_CONTEXT;
  if (handle)
    *handle = reinterpret_cast<CUcontext>(contextStack.back());
  contextStack.pop_back();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
  ENTER();
  CHECK(device);
  *device = currentContext()->device;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  ENTER();
  if (least)
    *least = 0;
  if (greatest)
    *greatest = -5;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void) {
  ENTER();
  UNSAFE();
  waitForDevice(currentContext()->device, lock);
  return s.lost;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **text) {
  CHECK(text);
  switch (error) {
#define NAME(CODE)                                                             \
  case CODE:                                                                   \
    *text = #CODE;                                                             \
    return CUDA_SUCCESS;
    NAME(CUDA_SUCCESS)
    NAME(CUDA_ERROR_INVALID_VALUE)
    NAME(CUDA_ERROR_OUT_OF_MEMORY)
    NAME(CUDA_ERROR_NOT_INITIALIZED)
    NAME(CUDA_ERROR_NO_DEVICE)
    NAME(CUDA_ERROR_INVALID_DEVICE)
    NAME(CUDA_ERROR_INVALID_IMAGE)
    NAME(CUDA_ERROR_INVALID_CONTEXT)
    NAME(CUDA_ERROR_NO_BINARY_FOR_GPU)
    NAME(CUDA_ERROR_INVALID_HANDLE)
    NAME(CUDA_ERROR_NOT_FOUND)
    NAME(CUDA_ERROR_NOT_READY)
    NAME(CUDA_ERROR_ILLEGAL_ADDRESS)
    NAME(CUDA_ERROR_LAUNCH_FAILED)
    NAME(CUDA_ERROR_NOT_SUPPORTED)
    NAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    NAME(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
    NAME(CUDA_ERROR_STREAM_CAPTURE_MERGE)
    NAME(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)
    NAME(CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
    NAME(CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
    NAME(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    NAME(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
    NAME(CUDA_ERROR_CAPTURED_EVENT)
    NAME(CUDA_ERROR_UNKNOWN)
#undef NAME
  default:
    *text = nullptr;
    return CUDA_ERROR_INVALID_VALUE;
  }
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text) {
  CUresult result = cuGetErrorName(error, text);
  if (result == CUDA_SUCCESS && !std::strncmp(*text, "CUDA_ERROR_", 11))
    *text += 11;
  return result;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int,
                                    cuuint64_t,
                                    CUdriverProcAddressQueryResult *status) {
  CHECK(name && function);
  Dl_info info;
  dladdr(reinterpret_cast<void *>(cuInit), &info);
  void *self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  *function = nullptr;
  for (const char *version : {"_v4", "_v3", "_v2", ""})
    if (!*function && self)
      *function = dlsym(self, (std::string(name) + version).c_str());
  if (!*function && !std::strcmp(name, "cuGraphInstantiate"))
    *function = dlsym(self, "cuGraphInstantiateWithFlags");
  if (self)
    dlclose(self);
  if (status)
    *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS
                        : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
  ENTER();
  CHECK(free && total);
  *total = memoryLimit();
  size_t used = s.used[currentContext()->device];
  *free = *total - std::min(*total, used);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *result, size_t bytes) {
  ENTER();
  CHECK(result);
  UNSAFE();
  return allocate(currentContext()->device, bytes, result);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr device) {
  ENTER();
  UNSAFE();
  // As the driver does, in effect.
  waitForDevice(currentContext()->device, lock);
  return release(device);
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *result, size_t bytes,
                                CUstream handle) {
  ENTER_STREAM(handle);
  CHECK(result);
  if (stream->capture)
    return CUDA_ERROR_NOT_SUPPORTED;
  return allocate(stream->device, bytes, result);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr device, CUstream handle) {
  ENTER_STREAM(handle);
  if (stream->capture)
    return CUDA_ERROR_NOT_SUPPORTED;
  Allocation *found = findDevice(device);
  CHECK(found && found->begin + deviceOffset == device);
  Action action;
  action.text = "kind=free to=" + hex(device);
  action.run = [=](Lock &) { return release(device); };
  return submit(stream, lock, std::move(action));
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes,
                                        CUdeviceptr device) {
  ENTER();
  Allocation *found = findDevice(device);
  if (!found)
    return CUDA_ERROR_NOT_FOUND;
  if (base)
    *base = found->begin + deviceOffset;
  if (bytes)
    *bytes = found->end - found->begin;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostAlloc(void **result, size_t bytes, unsigned) {
  ENTER();
  CHECK(result && bytes);
  UNSAFE();
  size_t rounded = (bytes + 63) / 64 * 64;
  size_t pages = (rounded + page - 1) / page * page;
  void *memory = mmap(nullptr, pages + 2 * page, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation allocation;
  allocation.mapped = reinterpret_cast<uint64_t>(memory) + page;
  allocation.mappedEnd = allocation.mapped + pages;
  if (!mapFresh(allocation.mapped, pages))
    return CUDA_ERROR_OUT_OF_MEMORY;
  allocation.begin = allocation.mappedEnd - rounded;
  allocation.end = allocation.begin + bytes;
  s.pinned[allocation.begin] = allocation;
  *result = reinterpret_cast<void *>(allocation.begin);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocHost_v2(void **result, size_t bytes) {
  return cuMemHostAlloc(result, bytes, 0);
}

EXPORT CUresult cuMemFreeHost(void *host) {
  ENTER();
  UNSAFE();
  auto it = s.pinned.find(reinterpret_cast<uint64_t>(host));
  CHECK(it != s.pinned.end() && it->second.mapped);
  waitForDevice(currentContext()->device, lock);
  it = s.pinned.find(reinterpret_cast<uint64_t>(host));
  CHECK(it != s.pinned.end());
  Allocation allocation = it->second;
  s.pinned.erase(it);
  munmap(reinterpret_cast<void *>(allocation.mapped - page),
         allocation.mappedEnd - allocation.mapped + 2 * page);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostRegister_v2(void *host, size_t bytes, unsigned) {
  ENTER();
  CHECK(host && bytes);
  Allocation allocation;
  allocation.begin = reinterpret_cast<uint64_t>(host);
  allocation.end = allocation.begin + bytes;
  if (find(s.pinned, allocation.begin))
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  s.pinned[allocation.begin] = allocation;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostUnregister(void *host) {
  ENTER();
  auto it = s.pinned.find(reinterpret_cast<uint64_t>(host));
  if (it == s.pinned.end() || it->second.mapped)
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  waitForDevice(currentContext()->device, lock);
  s.pinned.erase(reinterpret_cast<uint64_t>(host));
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *host,
                                             unsigned) {
  ENTER();
  CHECK(device && isPinned(host, 1));
  *device = reinterpret_cast<CUdeviceptr>(host);
  return CUDA_SUCCESS;
}

#define COPY(TO, FROM, SYNC) return copy(stream, lock, TO, FROM, bytes, SYNC)

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from,
                                size_t bytes) {
  ENTER_STREAM(nullptr);
  UNSAFE();
  COPY(onDevice(to), onHost(from), true);
}
EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
  ENTER_STREAM(nullptr);
  UNSAFE();
  COPY(onHost(to), onDevice(from), true);
}
EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from,
                                size_t bytes) {
  ENTER_STREAM(nullptr);
  UNSAFE();
  COPY(onDevice(to), onDevice(from), false);
}
EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  ENTER_STREAM(nullptr);
  UNSAFE();
  COPY(anywhere(to), anywhere(from), !inRegion(to) || !inRegion(from));
}
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from,
                                     size_t bytes, CUstream handle) {
  ENTER_STREAM(handle);
  COPY(onDevice(to), onHost(from), false);
}
EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes,
                                     CUstream handle) {
  ENTER_STREAM(handle);
  COPY(onHost(to), onDevice(from), false);
}
EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from,
                                     size_t bytes, CUstream handle) {
  ENTER_STREAM(handle);
  COPY(onDevice(to), onDevice(from), false);
}
EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                              CUstream handle) {
  ENTER_STREAM(handle);
  COPY(anywhere(to), anywhere(from), false);
}
EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from,
                                  CUcontext, size_t bytes, CUstream handle) {
  ENTER_STREAM(handle);
  COPY(onDevice(to), onDevice(from), false);
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value,
                              size_t count) {
  ENTER_STREAM(nullptr);
  return fill(stream, lock, to, value, count);
}
EXPORT CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value,
                               size_t count) {
  ENTER_STREAM(nullptr);
  return fill(stream, lock, to, value, count);
}
EXPORT CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
  ENTER_STREAM(nullptr);
  return fill(stream, lock, to, value, count);
}
EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value,
                                size_t count, CUstream handle) {
  ENTER_STREAM(handle);
  return fill(stream, lock, to, value, count);
}
EXPORT CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value,
                                 size_t count, CUstream handle) {
  ENTER_STREAM(handle);
  return fill(stream, lock, to, value, count);
}
EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count,
                                 CUstream handle) {
  ENTER_STREAM(handle);
  return fill(stream, lock, to, value, count);
}

//===----------------------------------------------------------------------===//
// Streams and events
//===----------------------------------------------------------------------===//

EXPORT CUresult cuStreamCreateWithPriority(CUstream *result, unsigned flags,
                                           int priority) {
  ENTER();
  CHECK(result && flags <= CU_STREAM_NON_BLOCKING);
  auto *stream = new Stream;
  stream->id = ++s.streamCount;
  stream->device = currentContext()->device;
  stream->priority = std::min(0, std::max(-5, priority));
  stream->flags = flags;
  s.streams.insert(stream);
  *result = reinterpret_cast<CUstream>(stream);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *result, unsigned flags) {
  return cuStreamCreateWithPriority(result, flags, 0);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
  ENTER_STREAM(handle);
  CHECK(stream->id != 0);
  if (stream->capture)
    stream->capture->streams.erase(stream), stream->capture->invalid = true;
  s.streams.erase(stream);
  delete stream;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetPriority(CUstream handle, int *priority) {
  ENTER_STREAM(handle);
  CHECK(priority);
  *priority = stream->priority;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetFlags(CUstream handle, unsigned *flags) {
  ENTER_STREAM(handle);
  CHECK(flags);
  *flags = stream->flags;
  return CUDA_SUCCESS;
}

/// Waiting for a stream, or asking it, ends its capture.
static bool capturing(Stream *stream) {
  if (stream->capture)
    stream->capture->invalid = true;
  return stream->capture != nullptr;
}

EXPORT CUresult cuStreamSynchronize(CUstream handle) {
  ENTER_STREAM(handle);
  if (capturing(stream))
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  UNSAFE();
  if (legacyForbidden(stream))
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  for (const OpPtr &op : lastOps(stream))
    waitFor(op, lock);
  return s.lost;
}

EXPORT CUresult cuStreamQuery(CUstream handle) {
  ENTER_STREAM(handle);
  if (capturing(stream))
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (!stream->last || stream->last->state == Op::Done)
    return CUDA_SUCCESS;
  runOneNeeded(stream->last, lock);
  return s.lost != CUDA_SUCCESS ? s.lost : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent eventHandle,
                                  unsigned) {
  ENTER_STREAM(handle);
  auto *event = checked<Event>(s.events, eventHandle);
  if (!event)
    return CUDA_ERROR_INVALID_HANDLE;
  if (isFault("drop-wait", countCall("wait")))
    return CUDA_SUCCESS;
  if (event->capture) {
    if (event->capture->ended)
      return CUDA_ERROR_CAPTURED_EVENT;
    if (stream->capture && stream->capture != event->capture) {
      stream->capture->invalid = event->capture->invalid = true;
      return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (!stream->capture) {
      if (stream->id == 0)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
      stream->capture = event->capture;
      stream->capture->streams.insert(stream);
      stream->tails.clear();
    }
    for (Node *node : event->nodes)
      if (std::find(stream->tails.begin(), stream->tails.end(), node) ==
          stream->tails.end())
        stream->tails.push_back(node);
    return CUDA_SUCCESS;
  }
  if (stream->capture) {
    if (!event->op)
      return CUDA_SUCCESS;
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (!event->op)
    return CUDA_SUCCESS;
  Action action;
  action.text = "kind=wait";
  return submit(stream, lock, std::move(action), nullptr, {event->op});
}

EXPORT CUresult cuEventCreate(CUevent *result, unsigned flags) {
  ENTER();
  CHECK(result);
  auto *event = new Event;
  event->flags = flags;
  s.events.insert(event);
  *result = reinterpret_cast<CUevent>(event);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent handle) {
  ENTER();
  auto *event = checked<Event>(s.events, handle);
  if (!event)
    return CUDA_ERROR_INVALID_HANDLE;
  s.events.erase(event);
  delete event;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent handle, CUstream streamHandle) {
  ENTER_STREAM(streamHandle);
  auto *event = checked<Event>(s.events, handle);
  if (!event)
    return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture) {
    if (stream->capture->invalid)
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    event->capture = stream->capture;
    event->nodes = stream->tails;
    event->op.reset();
    return CUDA_SUCCESS;
  }
  event->capture.reset();
  event->nodes.clear();
  Action action;
  action.text = "kind=event";
  OpPtr op;
  CUresult result = submit(stream, lock, std::move(action), &op);
  if (op)
    event->op = op;
  return result;
}

EXPORT CUresult cuEventSynchronize(CUevent handle) {
  ENTER();
  auto *event = checked<Event>(s.events, handle);
  if (!event)
    return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture)
    return CUDA_ERROR_CAPTURED_EVENT;
  UNSAFE();
  waitFor(event->op, lock);
  return s.lost;
}

EXPORT CUresult cuEventQuery(CUevent handle) {
  ENTER();
  auto *event = checked<Event>(s.events, handle);
  if (!event)
    return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture)
    return CUDA_ERROR_CAPTURED_EVENT;
  if (!event->op || event->op->state == Op::Done)
    return CUDA_SUCCESS;
  runOneNeeded(OpPtr(event->op), lock);
  return s.lost != CUDA_SUCCESS ? s.lost : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventElapsedTime_v2(float *time, CUevent from, CUevent to) {
  ENTER();
  CHECK(time);
  auto *first = checked<Event>(s.events, from);
  auto *second = checked<Event>(s.events, to);
  if (!first || !second || !first->op || !second->op ||
      (first->flags | second->flags) & CU_EVENT_DISABLE_TIMING)
    return CUDA_ERROR_INVALID_HANDLE;
  if (first->op->state != Op::Done || second->op->state != Op::Done)
    return CUDA_ERROR_NOT_READY;
  *time = std::chrono::duration<float, std::milli>(second->op->time -
                                                   first->op->time)
              .count();
  return CUDA_SUCCESS;
}

//===----------------------------------------------------------------------===//
// Modules and launches
//===----------------------------------------------------------------------===//

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  ENTER();
  return loadModule(module, image);
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image,
                                   unsigned, CUjit_option *, void **) {
  ENTER();
  return loadModule(module, image);
}

EXPORT CUresult cuModuleUnload(CUmodule handle) {
  ENTER();
  auto *module = checked<Module>(s.modules, handle);
  if (!module)
    return CUDA_ERROR_INVALID_HANDLE;
  waitForDevice(currentContext()->device, lock);
  for (auto &[name, function] : module->functions) {
    s.functions.erase(function);
    delete function;
  }
  s.modules.erase(module);
  dlclose(module->library);
  close(module->file);
  delete module;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *result, CUmodule handle,
                                    const char *name) {
  ENTER();
  CHECK(result && name);
  auto *module = checked<Module>(s.modules, handle);
  if (!module)
    return CUDA_ERROR_INVALID_HANDLE;
  Function *&function = module->functions[name];
  if (!function) {
    auto named = [&](const char *what) {
      return "cleave_host_" + std::string(what) + name;
    };
    void *library = module->library;
    auto *run = symbol<decltype(Function::run)>(library, named(""));
    if (!run) {
      module->functions.erase(name);
      return CUDA_ERROR_NOT_FOUND;
    }
    function = new Function;
    function->name = name;
    function->module = module;
    function->run = run;
    function->parameters =
        *symbol<const unsigned *>(library, named("parameters_"));
    function->threads = *symbol<const unsigned *>(library, named("threads_"));
    function->sizes =
        *symbol<const unsigned *const *>(library, named("sizes_"));
    function->pointers =
        *symbol<const unsigned char *const *>(library, named("pointers_"));
    s.functions.insert(function);
  }
  *result = reinterpret_cast<CUfunction>(function);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule handle) {
  ENTER();
  auto *module = checked<Module>(s.modules, handle);
  if (!module)
    return CUDA_ERROR_INVALID_HANDLE;
  *count = module->functions.size();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute,
                                   CUfunction handle) {
  ENTER();
  CHECK(value);
  auto *function = checked<Function>(s.functions, handle);
  if (!function)
    return CUDA_ERROR_INVALID_HANDLE;
  int major, minor;
  capability(major, minor);
  switch (attribute) {
  case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    *value = function->threads;
    break;
  case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
    *value = function->maxDynamicShared;
    break;
  case CU_FUNC_ATTRIBUTE_NUM_REGS:
    *value = 32;
    break;
  case CU_FUNC_ATTRIBUTE_PTX_VERSION:
  case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
    *value = major * 10 + minor;
    break;
  default:
    *value = 0;
  }
  return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncSetAttribute(CUfunction handle,
                                   CUfunction_attribute attribute, int value) {
  ENTER();
  auto *function = checked<Function>(s.functions, handle);
  if (!function)
    return CUDA_ERROR_INVALID_HANDLE;
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    CHECK(value >= 0 && value <= maxShared);
    function->maxDynamicShared = value;
    return CUDA_SUCCESS;
  }
  CHECK(attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count,
                                                            CUfunction handle,
                                                            int threads,
                                                            size_t shared) {
  ENTER();
  CHECK(count && threads > 0);
  auto *function = checked<Function>(s.functions, handle);
  if (!function)
    return CUDA_ERROR_INVALID_HANDLE;
  if (threads > int(function->threads) || shared > size_t(maxShared)) {
    *count = 0;
    return CUDA_SUCCESS;
  }
  *count = std::min<int>(
      {2048 / ((threads + 31) / 32 * 32), int(233472 / (shared + 1024)), 32});
  return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernel(CUfunction handle, unsigned gridX,
                               unsigned gridY, unsigned gridZ, unsigned blockX,
                               unsigned blockY, unsigned blockZ,
                               unsigned shared, CUstream streamHandle,
                               void **from, void **extra) {
  ENTER_STREAM(streamHandle);
  auto *function = checked<Function>(s.functions, handle);
  if (!function)
    return CUDA_ERROR_INVALID_HANDLE;
  CHECK(gridX && gridY && gridZ && gridX <= 0x7fffffff && gridY <= 65535 &&
        gridZ <= 65535);
  CHECK(blockX && blockY && blockZ &&
        uint64_t(blockX) * blockY * blockZ <= 1024);
  CHECK(blockX * blockY * blockZ <= function->threads);
  CHECK(int(shared) >= 0 && int(shared) <= function->maxDynamicShared);
  CHECK(!extra && (from || !function->parameters));
  if (blockY * blockZ != 1) {
    std::fprintf(stderr,
                 "emulated kernel %s: blocks of more than one dimension"
                 " are not emulated\n",
                 function->name.c_str());
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  uint64_t count = countCall("launch");
  if (isFault("skip", count))
    return CUDA_SUCCESS;
  if (isFault("swap-stream", count))
    stream = otherStream(stream);
  if (isFault("grid", count)) {
    if (gridX > 1)
      --gridX;
    else if (gridY > 1)
      --gridY;
    else if (gridZ > 1)
      --gridZ;
    else
      return CUDA_SUCCESS;
  }
  uint64_t offset = isFault("offset", count) ? 16 : 0;

  Parameters parameters;
  size_t bytes = 0;
  for (unsigned i = 0; i < function->parameters; ++i) {
    CHECK(from[i]);
    parameters.offsets.push_back(bytes);
    bytes += (function->sizes[i] + 63) / 64 * 64;
  }
  // Parameters are as aligned as any type, whatever the vector's memory is.
  parameters.words.resize(bytes / 8 + 8);
  for (unsigned i = 0; i < function->parameters; ++i)
    std::memcpy(parameters.words.data() + parameters.offsets[i] / 8, from[i],
                function->sizes[i]);
  Parameters tried = parameters;
  if (!translate(*function, tried, nullptr, 0))
    return CUDA_ERROR_ILLEGAL_ADDRESS;

  Action action;
  auto text = [](unsigned n) { return std::to_string(n); };
  action.text = "kind=launch name=" + function->name + " grid=" + text(gridX) +
                "," + text(gridY) + "," + text(gridZ) +
                " block=" + text(blockX) + " shared=" + text(shared);
  action.run = [=](Lock &lock) {
    return runKernel(function, parameters, gridX, gridY, gridZ, blockX, shared,
                     offset, lock);
  };
  return submit(stream, lock, std::move(action));
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config,
                                 CUfunction function, void **parameters,
                                 void **extra) {
  CHECK(config);
  return cuLaunchKernel(function, config->gridDimX, config->gridDimY,
                        config->gridDimZ, config->blockDimX, config->blockDimY,
                        config->blockDimZ, config->sharedMemBytes,
                        config->hStream, parameters, extra);
}

EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function,
                                 void *data) {
  ENTER_STREAM(handle);
  CHECK(function);
  Action action;
  action.text = "kind=host";
  action.run = [=](Lock &lock) {
    lock.unlock();
    function(data);
    lock.lock();
    return CUDA_SUCCESS;
  };
  return submit(stream, lock, std::move(action));
}

//===----------------------------------------------------------------------===//
// Capture and graphs
//===----------------------------------------------------------------------===//

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  CHECK(mode);
  std::swap(*mode, threadMode);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle,
                                        CUstreamCaptureMode mode) {
  ENTER_STREAM(handle);
  if (stream->id == 0)
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture)
    return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->origin = stream;
  capture->streams = {stream};
  capture->mode = mode;
  capture->thread = &threadMark;
  stream->capture = capture;
  stream->tails.clear();
  s.captures.insert(capture.get());
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph *result) {
  ENTER_STREAM(handle);
  CHECK(result);
  *result = nullptr;
  CapturePtr capture = stream->capture;
  if (!capture)
    return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream) {
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      capture->thread != &threadMark)
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  std::set<Node *> reached;
  std::vector<Node *> open = stream->tails;
  while (!open.empty()) {
    Node *node = open.back();
    open.pop_back();
    if (reached.insert(node).second)
      open.insert(open.end(), node->after.begin(), node->after.end());
  }
  bool joined = true;
  for (Stream *other : capture->streams) {
    for (Node *node : other->tails)
      joined &= reached.count(node) > 0;
    other->capture.reset();
    other->tails.clear();
  }
  capture->ended = true;
  s.captures.erase(capture.get());
  if (capture->invalid)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!joined)
    return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  auto *graph = new Graph{capture->nodes};
  s.graphs.insert(graph);
  *result = reinterpret_cast<CUgraph>(graph);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream handle,
                                    CUstreamCaptureStatus *status) {
  ENTER_STREAM(handle);
  CHECK(status);
  *status = !stream->capture           ? CU_STREAM_CAPTURE_STATUS_NONE
            : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes,
                                size_t *count) {
  ENTER();
  CHECK(count);
  auto *graph = checked<Graph>(s.graphs, handle);
  if (!graph)
    return CUDA_ERROR_INVALID_HANDLE;
  size_t all = graph->nodes->size();
  if (nodes)
    for (size_t i = 0; i < *count; ++i)
      nodes[i] = i < all
                     ? reinterpret_cast<CUgraphNode>((*graph->nodes)[i].get())
                     : nullptr;
  *count = nodes ? std::min(*count, all) : all;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *result, CUgraph handle,
                                            unsigned long long) {
  ENTER();
  CHECK(result);
  auto *graph = checked<Graph>(s.graphs, handle);
  if (!graph)
    return CUDA_ERROR_INVALID_HANDLE;
  auto *exec = new GraphExec{graph->nodes, nullptr};
  s.execs.insert(exec);
  *result = reinterpret_cast<CUgraphExec>(exec);
  return CUDA_SUCCESS;
}
/// The name in the library has two parameters more, of messages.
#undef cuGraphInstantiate
EXPORT CUresult fakeGraphInstantiate(CUgraphExec *result, CUgraph graph,
                                     CUgraphNode *, char *,
                                     size_t) __asm__("cuGraphInstantiate");
EXPORT CUresult fakeGraphInstantiate(CUgraphExec *result, CUgraph graph,
                                     CUgraphNode *, char *, size_t) {
  return cuGraphInstantiateWithFlags(result, graph, 0);
}

EXPORT CUresult cuGraphUpload(CUgraphExec handle, CUstream) {
  ENTER();
  return checked<GraphExec>(s.execs, handle) ? CUDA_SUCCESS
                                             : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec handle, CUstream streamHandle) {
  ENTER_STREAM(streamHandle);
  auto *exec = checked<GraphExec>(s.execs, handle);
  if (!exec)
    return CUDA_ERROR_INVALID_HANDLE;
  if (legacyForbidden(stream))
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  std::set<Node *> ends;
  for (const auto &node : *exec->nodes) {
    ends.insert(node.get());
    for (Node *other : node->after)
      ends.erase(other);
  }
  if (stream->capture) {
    std::map<Node *, Node *> copies;
    std::vector<Node *> tails;
    for (const auto &node : *exec->nodes) {
      auto copy = std::make_unique<Node>();
      copy->action = node->action;
      for (Node *other : node->after)
        copy->after.push_back(copies[other]);
      if (node->after.empty())
        copy->after = stream->tails;
      copies[node.get()] = copy.get();
      if (ends.count(node.get()))
        tails.push_back(copy.get());
      stream->capture->nodes->push_back(std::move(copy));
    }
    if (!tails.empty())
      stream->tails = tails;
    return CUDA_SUCCESS;
  }
  std::vector<OpPtr> after = lastOps(stream);
  after.push_back(exec->last);
  OpPtr start = makeOp(stream->device, nullptr, after);
  std::map<Node *, OpPtr> ops;
  std::vector<OpPtr> last{start};
  for (const auto &node : *exec->nodes) {
    std::vector<OpPtr> before;
    for (Node *other : node->after)
      before.push_back(ops[other]);
    if (before.empty())
      before.push_back(start);
    OpPtr op = makeOp(stream->device, node->action, before);
    ops[node.get()] = op;
    if (ends.count(node.get()))
      last.push_back(op);
  }
  auto action = std::make_shared<Action>();
  action->stream = stream->id;
  action->text = "kind=graph";
  // Actions refer to nothing of the graph, but the record may be of one that
  // was destroyed.
  stream->last = exec->last = makeOp(stream->device, action, last);
  runSome(lock);
  return s.lost;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec handle) {
  ENTER();
  auto *exec = checked<GraphExec>(s.execs, handle);
  if (!exec)
    return CUDA_ERROR_INVALID_HANDLE;
  s.execs.erase(exec);
  delete exec;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph handle) {
  ENTER();
  auto *graph = checked<Graph>(s.graphs, handle);
  if (!graph)
    return CUDA_ERROR_INVALID_HANDLE;
  s.graphs.erase(graph);
  delete graph;
  return CUDA_SUCCESS;
}

#undef cuEventElapsedTime
EXPORT CUresult cuEventElapsedTime(float *time, CUevent from, CUevent to) {
  return cuEventElapsedTime_v2(time, from, to);
}
