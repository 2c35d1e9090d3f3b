//===- FakeNccl.cpp - NCCL's collectives on the host ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// libnccl.so.2 for machines without a device, next to the fake driver in the
/// same folder: for ranks that are threads of one process, or of several on one
/// machine, which meet in a folder (NcclBoard.h). The calls of a group
/// are one op of each stream, which runs when all that take part have reached
/// theirs: collectives of a communicator match in the order of calls, messages
/// in the order of each pair. Sums are in the order of a ring, which begins
/// elsewhere for each part of the elements, and rounded after each addition. A
/// maximum with NaN may or may not be NaN.
///
/// As NCCL 2.30 does, members of one host ($NCCL_HOSTID, else the machine) on
/// one device are refused unless $NCCL_MULTI_RANK_GPU_ENABLE is 1; with
/// NCCL_DEBUG=WARN standard output says why.
///
/// An abort waits for all that is under way on its device, as NCCL's does when
/// it frees memory; those of a group wait when all of them are marked. With
/// CLEAVE_FAKE_NCCL_MEMORY=BYTES a communicator takes so much of the device.
///
/// Members whose calls differ end the process with a message. So do exchanges
/// of which none ends for a while ($CLEAVE_FAKE_NCCL_PATIENCE, 20 seconds, 120
/// between processes): on a device they would wait forever.
///
/// CLEAVE_FAKE_NCCL applies faults, separated by commas. N counts the calls of
/// a device that move data, from 1:
///
///   leave-out:DEVICE:N  the call is not made
///   error:DEVICE:N      its communicator fails later
///   refuse:DEVICE:N     the call returns an error
///   size:DEVICE:N       the call is of one element fewer
///   hang:DEVICE:N       the device never reaches the call, which waits until
///                       its communicator is aborted
///
//===----------------------------------------------------------------------===//

#include "Hooks.h"
#include "NcclBoard.h"
#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <unistd.h>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum Result {
  Success = 0,
  UnhandledCudaError = 1,
  InternalError = 3,
  InvalidArgument = 4,
  InvalidUsage = 5,
  RemoteError = 6,
  InProgress = 7
};
enum Type {
  I8 = 0,
  U8 = 1,
  I32 = 2,
  U32 = 3,
  I64 = 4,
  U64 = 5,
  F16 = 6,
  F32 = 7,
  F64 = 8,
  BF16 = 9,
  Types
};
const char *const typeNames[] = {"i8",  "u8",  "i32", "u32", "i64",
                                 "u64", "f16", "f32", "f64", "bf16"};
const size_t typeBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
enum Operation { Sum = 0, Max = 2, Min = 3 };
enum Kind {
  AllReduce,
  AllGather,
  ReduceScatter,
  Broadcast,
  Reduce,
  Send,
  Receive
};
const char *const kindNames[] = {"all-reduce", "all-gather", "reduce-scatter",
                                 "broadcast",  "reduce",     "send",
                                 "receive"};

//===----------------------------------------------------------------------===//
// The driver
//===----------------------------------------------------------------------===//

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

/// That of the folder of this library.
const Driver *driver() {
  static const Driver found = [] {
    Driver result;
    Dl_info info;
    if (!dladdr(reinterpret_cast<void *>(&driver), &info))
      return result;
    std::string path = info.dli_fname;
    path = path.substr(0, path.rfind('/') + 1) + "libcuda.so.1";
    void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library)
      return result;
    auto load = [&](auto &function, const char *name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
          dlsym(library, name));
    };
    load(result.enqueue, "cleave_fake_enqueue_op");
    load(result.host, "cleave_fake_host");
    load(result.room, "cleave_fake_room");
    load(result.device, "cuCtxGetDevice");
    load(result.uuid, "cuDeviceGetUuid_v2");
    load(result.synchronize, "cuCtxSynchronize");
    load(result.allocate, "cuMemAlloc_v2");
    load(result.free, "cuMemFree_v2");
    return result;
  }();
  bool whole = found.enqueue && found.host && found.room && found.device &&
               found.uuid && found.synchronize && found.allocate && found.free;
  return whole ? &found : nullptr;
}

//===----------------------------------------------------------------------===//
// Elements
//===----------------------------------------------------------------------===//

template <class To, class From> To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

struct Half {
  using Wide = float;
  _Float16 value;
  operator float() const { return static_cast<float>(value); }
  static Half of(float x) { return {static_cast<_Float16>(x)}; }
};
struct Brain {
  using Wide = float;
  uint16_t value;
  operator float() const { return bits<float>(uint32_t(value) << 16); }
  static Brain of(float x) {
    uint32_t own = bits<uint32_t>(x);
    if (x != x)
      return {0x7fff};
    return {static_cast<uint16_t>((own + 0x7fff + (own >> 16 & 1)) >> 16)};
  }
};

/// `a` and `b` combined, rounded to the type.
template <class T> T combine(T a, T b, int operation) {
  if constexpr (std::is_class_v<T>) {
    return T::of(combine<float>(a, b, operation));
  } else if constexpr (std::is_signed_v<T> && std::is_integral_v<T>) {
    using Wrapping = std::make_unsigned_t<T>;
    return operation == Sum   ? T(Wrapping(a) + Wrapping(b))
           : operation == Max ? std::max(a, b)
                              : std::min(a, b);
  } else {
    // Which one a NaN gives depends on the order.
    return operation == Sum   ? T(a + b)
           : operation == Max ? (a > b ? a : b)
                              : (a < b ? a : b);
  }
}

/// Element i of `count`, combined from the member on to which it belongs.
template <class T>
void reduce(const std::vector<const char *> &srcs,
            const std::vector<char *> &dsts, size_t from, size_t to,
            size_t count, int operation) {
  size_t members = srcs.size();
  std::vector<T> sums(to - from);
  for (size_t i = from; i < to; ++i) {
    size_t first = (i * members / std::max<size_t>(count, 1) + 1) % members;
    T sum{};
    for (size_t k = 0; k < members; ++k) {
      T own;
      std::memcpy(&own, srcs[(first + k) % members] + i * sizeof(T),
                  sizeof own);
      sum = k == 0 ? own : combine(sum, own, operation);
    }
    sums[i - from] = sum;
  }
  for (char *dst : dsts)
    if (dst && to > from)
      std::memcpy(dst, sums.data(), sizeof(T) * (to - from));
}

/// Writes the elements [from, to) to the beginning of each of `dsts`.
void reduce(int type, const std::vector<const char *> &srcs,
            const std::vector<char *> &dsts, size_t from, size_t to,
            size_t count, int operation) {
  auto call = [&](auto zero) {
    reduce<decltype(zero)>(srcs, dsts, from, to, count, operation);
  };
  switch (type) {
  case I8:
    return call(int8_t());
  case U8:
    return call(uint8_t());
  case I32:
    return call(int32_t());
  case U32:
    return call(uint32_t());
  case I64:
    return call(int64_t());
  case U64:
    return call(uint64_t());
  case F16:
    return call(Half());
  case F32:
    return call(float());
  case F64:
    return call(double());
  case BF16:
    return call(Brain());
  }
}

//===----------------------------------------------------------------------===//
// State
//===----------------------------------------------------------------------===//

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

State &state() {
  static State &state = *new State;
  return state;
}

thread_local Group group;

[[noreturn]] void die(const std::string &what) {
  std::fprintf(stderr, "NCCL on the host: %s\n", what.c_str());
  std::abort();
}

/// Whether the fault of this name is for the `count`-th call of a device.
bool isFault(const char *name, int device, size_t count) {
  const char *text = std::getenv("CLEAVE_FAKE_NCCL");
  std::string one = std::string(name) + ":" + std::to_string(device) + ":" +
                    std::to_string(count);
  return text && ("," + std::string(text) + ",").find("," + one + ",") !=
                     std::string::npos;
}

CommunicatorPtr find(void *handle) {
  auto it = state().communicators.find(handle);
  return it == state().communicators.end() ? nullptr : it->second;
}

//===----------------------------------------------------------------------===//
// Exchanges
//===----------------------------------------------------------------------===//

/// Moves the data of an exchange that all have reached.
void perform(const Exchange &exchange) {
  const Call &any = exchange.calls.begin()->second;
  size_t bytes = any.count * typeBytes[any.type];
  if (any.kind == Send || any.kind == Receive) {
    const Call *from = nullptr, *to = nullptr;
    for (const auto &[end, call] : exchange.calls)
      (call.kind == Send ? from : to) = &call;
    if (bytes && to->dst)
      std::memmove(to->dst, from->src, bytes);
    return;
  }
  std::vector<const char *> srcs;
  std::vector<char *> dsts;
  for (const auto &[member, call] : exchange.calls) {
    srcs.push_back(call.src);
    dsts.push_back(call.dst);
  }
  size_t members = srcs.size();
  auto root = static_cast<size_t>(any.peer);
  switch (any.kind) {
  case AllReduce:
    return reduce(any.type, srcs, dsts, 0, any.count, any.count, any.operation);
  case Reduce:
    return reduce(any.type, srcs, {dsts[root]}, 0, any.count, any.count,
                  any.operation);
  case ReduceScatter: {
    // In place, results are among what is sent.
    std::vector<std::vector<char>> results(members);
    for (size_t i = 0; i < members; ++i) {
      results[i].resize(bytes);
      reduce(any.type, srcs, {results[i].data()}, i * any.count,
             (i + 1) * any.count, members * any.count, any.operation);
    }
    for (size_t i = 0; i < members && bytes; ++i)
      if (dsts[i])
        std::memcpy(dsts[i], results[i].data(), bytes);
    return;
  }
  case AllGather:
    for (char *dst : dsts)
      for (size_t i = 0; i < members && bytes && dst; ++i)
        std::memmove(dst + i * bytes, srcs[i], bytes);
    return;
  case Broadcast:
    for (char *dst : dsts)
      if (bytes && dst)
        std::memmove(dst, srcs[root], bytes);
    return;
  default:
    return;
  }
}

/// Whether two calls of one exchange go together.
void match(const Clique &clique, const Call &one, const Call &other) {
  bool message = one.kind == Send || one.kind == Receive;
  bool same = one.count == other.count && one.type == other.type &&
              (message ? one.kind != other.kind
                       : one.kind == other.kind && one.peer == other.peer &&
                             one.operation == other.operation);
  if (!same)
    die("members of " + clique.name + " make different calls: " + one.text() +
        ", and " + other.text());
}

/// What the others of an exchange between processes get.
void send(const Communicator &own, const Exchange &exchange) {
  const Call &call = exchange.calls.begin()->second;
  size_t bytes = call.count * typeBytes[call.type];
  if (call.kind == ReduceScatter)
    bytes *= exchange.members;
  if (call.kind == Receive ||
      (call.kind == Broadcast && call.peer != own.member))
    bytes = 0;
  Call head = call;
  head.src = head.dst = nullptr;
  own.clique->board->send(
      exchange.name, own.member, int(exchange.others.size()),
      {reinterpret_cast<const char *>(&head), sizeof head}, call.src, bytes);
}

/// Whether all others of an exchange between processes have reached it.
bool haveSent(const Communicator &own, const Exchange &exchange) {
  return std::all_of(
      exchange.others.begin(), exchange.others.end(),
      [&](int other) { return own.clique->board->has(exchange.name, other); });
}

/// Moves what this member gets.
void receive(const Communicator &own, const Exchange &exchange) {
  Exchange whole = exchange;
  std::map<int, std::vector<char>> data;
  for (int other : exchange.others) {
    std::string head;
    Call call;
    own.clique->board->receive(exchange.name, other, sizeof call, head,
                               data[other]);
    if (head.size() != sizeof call)
      die(exchange.name + " of " + own.clique->name + " is not there");
    std::memcpy(static_cast<void *>(&call), head.data(), sizeof call);
    match(*own.clique, call, exchange.calls.begin()->second);
    call.src = data[other].data();
    whole.calls[other] = call;
  }
  perform(whole);
}

std::string describe(const Op &op) {
  std::string text;
  for (const auto &[own, exchange] : op.parts) {
    if (exchange->arrived.size() == exchange->members)
      continue;
    text += "\n  device " + std::to_string(own->device) + " is at " +
            exchange->calls.begin()->second.text() + " of " +
            own->clique->name + ", which ";
    text += std::to_string(exchange->arrived.size()) + " of " +
            std::to_string(exchange->members) + " have reached";
  }
  return text;
}

/// Called when all before it on its stream has run.
bool isReady(void *data) {
  auto *op = static_cast<Op *>(data);
  State &s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  bool ready = true;
  for (auto &[own, exchange] : op->parts) {
    if (op->hangs && !own->aborted) {
      ready = false;
      continue;
    }
    int key = own->member;
    // A message to itself has both ends in one op.
    for (const auto &[end, call] : exchange->calls)
      if (end == key || end == key + INT_MAX / 2)
        if (exchange->arrived.insert(end).second) {
          s.moved = Clock::now();
          if (!exchange->name.empty() && !own->aborted)
            send(*own, *exchange);
        }
    if (!own->aborted && !exchange->name.empty() && haveSent(*own, *exchange))
      exchange->arrived.insert(exchange->others.begin(),
                               exchange->others.end());
    if (!own->aborted &&
        (own->error || exchange->arrived.size() < exchange->members))
      ready = false;
  }
  if (ready) {
    s.waiting.erase(op);
    return true;
  }
  s.waiting.insert(op);
  bool spread = std::any_of(op->parts.begin(), op->parts.end(), [](auto &part) {
    return std::get<0>(part)->clique->spread;
  });
  double patience = spread ? 120 : 20;
  if (const char *text = std::getenv("CLEAVE_FAKE_NCCL_PATIENCE"))
    patience = std::strtod(text, nullptr);
  if (std::chrono::duration<double>(Clock::now() - s.moved).count() >
      patience) {
    std::string text = "no exchange ends:";
    for (const Op *other : s.waiting)
      text += describe(*other);
    die(text);
  }
  return false;
}

void run(void *data) {
  auto *op = static_cast<Op *>(data);
  State &s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  for (auto &[own, exchange] : op->parts)
    if (!own->aborted && !exchange->done &&
        exchange->arrived.size() == exchange->members) {
      if (exchange->name.empty())
        perform(*exchange);
      else
        receive(*own, *exchange);
      exchange->done = true;
      s.moved = Clock::now();
    }
}

void drop(void *data) {
  auto *op = static_cast<Op *>(data);
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    state().waiting.erase(op);
  }
  delete op;
}

/// Enters a call into the exchange that it is part of.
std::shared_ptr<Exchange> enter(Communicator &own, const Call &call) {
  std::tuple<int, int, size_t> key;
  int end = own.member;
  size_t members = 2;
  if (call.kind == Send || call.kind == Receive) {
    std::pair<int, int> pair = call.kind == Send
                                   ? std::pair(own.member, call.peer)
                                   : std::pair(call.peer, own.member);
    // Counted at each end.
    size_t &number = own.messages[{
        call.kind == Send ? pair.first : -1 - pair.first, pair.second}];
    key = {pair.first, pair.second, number++};
    if (call.kind == Receive)
      end += INT_MAX / 2;
  } else {
    key = {-1, -1, own.collectives++};
    members = static_cast<size_t>(own.clique->members);
  }
  auto [from, to, number] = key;
  // A message to itself needs no board.
  if (own.clique->spread && (from < 0 || from != to)) {
    auto exchange = std::make_shared<Exchange>();
    exchange->members = members;
    exchange->calls[own.member] = call;
    exchange->name =
        (from < 0 ? "all" : std::to_string(from) + "-" + std::to_string(to)) +
        "-" + std::to_string(number);
    if (from >= 0)
      exchange->others = {own.member == from ? to : from};
    for (int other = 0; from < 0 && other < own.clique->members; ++other)
      if (other != own.member)
        exchange->others.push_back(other);
    return exchange;
  }
  std::shared_ptr<Exchange> &exchange = own.clique->exchanges[key];
  if (!exchange)
    exchange = std::make_shared<Exchange>();
  exchange->members = members;
  if (!exchange->calls.empty())
    match(*own.clique, exchange->calls.begin()->second, call);
  exchange->calls[end] = call;
  std::shared_ptr<Exchange> result = exchange;
  if (exchange->calls.size() == members)
    own.clique->exchanges.erase(key);
  return result;
}

int endGroup() {
  Group own = std::move(group);
  group = Group();
  for (const CommunicatorPtr &ended : own.ended) {
    if (ended->aborted)
      driver()->synchronize();
    if (ended->memory)
      driver()->free(ended->memory);
  }
  if (own.error)
    return own.error;
  std::vector<std::pair<void *, Op *>> ops;
  {
    State &s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.moved = Clock::now();
    for (auto &[communicator, stream, call] : own.calls) {
      auto it = std::find_if(ops.begin(), ops.end(),
                             [&](auto &op) { return op.first == stream; });
      if (it == ops.end())
        it = ops.insert(ops.end(), {stream, new Op{{}, own.hangs}});
      it->second->parts.push_back({communicator, enter(*communicator, call)});
    }
  }
  int result = Success;
  for (auto &[stream, op] : ops) {
    const Call *call = nullptr;
    {
      std::lock_guard<std::mutex> lock(state().mutex);
      call = &std::get<1>(op->parts.front())->calls.begin()->second;
    }
    std::string text = std::string("nccl-") + kindNames[call->kind];
    if (driver()->enqueue(stream, text.c_str(), isReady, run, op, drop))
      result = UnhandledCudaError;
  }
  return result;
}

int add(void *handle, void *stream, Call call, size_t sent, size_t received) {
  CommunicatorPtr own;
  bool leaves = false;
  {
    State &s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    own = find(handle);
    if (!own || own->aborted || own->finalized)
      return InvalidArgument;
    if (call.type < 0 || call.type >= Types)
      return InvalidArgument;
    if (!own->clique->connected || own->clique->refusal)
      return InvalidUsage;
    if (call.peer < 0 || call.peer >= own->clique->members)
      return InvalidArgument;
    size_t count = ++s.calls[own->device];
    leaves = isFault("leave-out", own->device, count);
    if (isFault("error", own->device, count))
      own->error = RemoteError;
    if (isFault("refuse", own->device, count)) {
      if (group.depth)
        group.error = InternalError;
      return InternalError;
    }
    group.hangs |= isFault("hang", own->device, count);
    if (isFault("size", own->device, count) && call.count > 0)
      --call.count;
  }
  size_t bytes = call.count * typeBytes[call.type];
  auto host = [&](uint64_t device, size_t blocks) -> char * {
    auto *at = static_cast<char *>(driver()->host(device));
    if (blocks && bytes && (!at || driver()->room(device) < blocks * bytes))
      die(call.text() + " leaves its buffer");
    return at;
  };
  call.src = host(reinterpret_cast<uint64_t>(call.src), sent);
  call.dst = host(reinterpret_cast<uint64_t>(call.dst), received);
  if (!leaves)
    group.calls.push_back({own, stream, call});
  return group.depth ? Success : endGroup();
}

} // namespace

//===----------------------------------------------------------------------===//
// Communicators
//===----------------------------------------------------------------------===//

EXPORT int ncclGetVersion(int *version) {
  *version = 23007;
  return driver() ? Success : UnhandledCudaError;
}

EXPORT const char *ncclGetErrorString(int status) {
  switch (status) {
  case Success:
    return "no error";
  case UnhandledCudaError:
    return "unhandled cuda error";
  case InternalError:
    return "internal error";
  case InvalidArgument:
    return "invalid argument";
  case InvalidUsage:
    return "invalid usage";
  case RemoteError:
    return "remote process exited or there was a network error";
  case InProgress:
    return "NCCL operation in progress";
  default:
    return "unknown result code";
  }
}

/// The identity: a name, and behind it the path of its board.
constexpr size_t pathAt = 48;

EXPORT int ncclGetUniqueId(Id *id) {
  State &s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->bytes, pathAt, "clique %zu of process %d", ++s.ids,
                int(getpid()));
  std::snprintf(id->bytes + pathAt, sizeof id->bytes - pathAt, "%s",
                fake::Board::make(s.ids).c_str());
  return Success;
}

/// The host that a member believes to be on, and its device.
static std::string placeOf(int device) {
  char machine[256] = "", uuid[16] = "";
  gethostname(machine, sizeof machine - 1);
  const char *host = std::getenv("NCCL_HOSTID");
  driver()->uuid(uuid, device);
  std::string text = std::string(host ? host : machine) + " ";
  for (char byte : uuid)
    text += "0123456789abcdef"[byte >> 4 & 15],
        text += "0123456789abcdef"[byte & 15];
  return text;
}

/// Whether all members have joined, and whether that may be.
static void connect(Clique &clique) {
  if (clique.connected)
    return;
  std::vector<std::string> places =
      clique.board->notes("place", clique.members);
  if (places.empty())
    return;
  clique.connected = true;
  clique.spread = clique.joined < clique.members;
  const char *shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  std::set<std::string> distinct(places.begin(), places.end());
  if (distinct.size() == places.size() || (shared && !std::strcmp(shared, "1")))
    return;
  clique.refusal = InvalidUsage;
  if (const char *debug = std::getenv("NCCL_DEBUG");
      debug && std::strcmp(debug, "VERSION")) {
    std::printf(
        "NCCL WARN Multiple Ranks are using the same GPU/Partition. Set "
        "NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration.\n");
    std::fflush(stdout);
  }
}

EXPORT int ncclCommInitRankConfig(void **result, int members, Id id, int member,
                                  const void *config) {
  struct {
    size_t size;
    unsigned magic, version;
    int blocking;
  } given;
  std::memcpy(&given, config, sizeof given);
  if (given.size < sizeof given || given.magic != 0xcafebeef ||
      given.version < 21400 || given.blocking < 0 || given.blocking > 1 ||
      members < 1 || member < 0 || member >= members)
    return InvalidArgument;
  State &s = state();
  auto own = std::make_shared<Communicator>();
  if (driver()->device(&own->device))
    return UnhandledCudaError;
  std::string place = placeOf(own->device);
  if (const char *bytes = std::getenv("CLEAVE_FAKE_NCCL_MEMORY")) {
    own->bytes = std::strtoull(bytes, nullptr, 10);
    if (driver()->allocate(&own->memory, own->bytes))
      return UnhandledCudaError;
  }
  std::unique_lock<std::mutex> lock(s.mutex);
  std::shared_ptr<Clique> &clique = s.cliques[id.bytes];
  if (!clique) {
    clique = std::make_shared<Clique>();
    clique->board = std::make_unique<fake::Board>(id.bytes + pathAt);
  }
  if (clique->members && clique->members != members)
    die("members of " + std::string(id.bytes) + " differ in its size");
  clique->members = members;
  clique->name = id.bytes;
  ++clique->joined;
  clique->board->note("place", member, place);
  own->clique = clique;
  own->member = member;
  *result = own.get();
  s.communicators[own.get()] = own;
  s.moved = Clock::now();
  if (!given.blocking)
    return InProgress;
  while (connect(*own->clique), !own->clique->connected) {
    lock.unlock();
    usleep(1000);
    lock.lock();
  }
  return own->clique->refusal;
}

EXPORT int ncclCommGetAsyncError(void *handle, int *status) {
  std::lock_guard<std::mutex> lock(state().mutex);
  CommunicatorPtr own = find(handle);
  if (!own)
    return InvalidArgument;
  Clique &clique = *own->clique;
  connect(clique);
  bool finalizing = own->finalized && clique.finalized < clique.members &&
                    clique.board->notes("final", clique.members).empty();
  *status = own->error          ? own->error
            : clique.refusal    ? clique.refusal
            : !clique.connected ? InProgress
            : finalizing        ? InProgress
                                : Success;
  return Success;
}

EXPORT int ncclCommFinalize(void *handle) {
  std::lock_guard<std::mutex> lock(state().mutex);
  CommunicatorPtr own = find(handle);
  if (!own || own->finalized)
    return InvalidArgument;
  own->finalized = true;
  ++own->clique->finalized;
  own->clique->board->note("final", own->member, "");
  return InProgress;
}

static int end(void *handle, bool aborts) {
  CommunicatorPtr own;
  {
    State &s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    own = find(handle);
    if (!own)
      return InvalidArgument;
    own->aborted = aborts;
    s.communicators.erase(handle);
    s.moved = Clock::now();
    Clique &clique = *own->clique;
    clique.board->note("end", own->member, "");
    bool last = ++clique.ended == clique.members ||
                !clique.board->notes("end", clique.members).empty();
    // Between processes nothing comes after an abort.
    if (last || (aborts && clique.spread))
      clique.board->remove();
  }
  group.ended.push_back(own);
  return group.depth ? Success : endGroup();
}

EXPORT int ncclCommDestroy(void *handle) { return end(handle, false); }
EXPORT int ncclCommAbort(void *handle) { return end(handle, true); }

EXPORT int ncclCommMemStats(void *handle, int what, uint64_t *value) {
  std::lock_guard<std::mutex> lock(state().mutex);
  CommunicatorPtr own = find(handle);
  if (!own || what < 0 || what > 3)
    return InvalidArgument;
  // To be suspended, suspended, persistent, all.
  *value = what >= 2 ? own->bytes : 0;
  return Success;
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

EXPORT int ncclGroupStart() {
  ++group.depth;
  return Success;
}

EXPORT int ncclGroupEnd() {
  if (group.depth == 0)
    return InvalidUsage;
  return --group.depth ? Success : endGroup();
}

static Call make(Kind kind, const void *src, void *dst, size_t count, int type,
                 int operation, int peer) {
  return {kind,
          static_cast<const char *>(src),
          static_cast<char *>(dst),
          count,
          type,
          operation,
          peer};
}
static size_t membersOf(void *handle) {
  std::lock_guard<std::mutex> lock(state().mutex);
  CommunicatorPtr own = find(handle);
  return own ? static_cast<size_t>(own->clique->members) : 0;
}
static bool isMember(void *handle, int member) {
  std::lock_guard<std::mutex> lock(state().mutex);
  CommunicatorPtr own = find(handle);
  return own && own->member == member;
}

EXPORT int ncclAllReduce(const void *src, void *dst, size_t count, int type,
                         int operation, void *own, void *stream) {
  return add(own, stream, make(AllReduce, src, dst, count, type, operation, 0),
             1, 1);
}
EXPORT int ncclAllGather(const void *src, void *dst, size_t count, int type,
                         void *own, void *stream) {
  return add(own, stream, make(AllGather, src, dst, count, type, 0, 0), 1,
             membersOf(own));
}
EXPORT int ncclReduceScatter(const void *src, void *dst, size_t count, int type,
                             int operation, void *own, void *stream) {
  return add(own, stream,
             make(ReduceScatter, src, dst, count, type, operation, 0),
             membersOf(own), 1);
}
EXPORT int ncclBroadcast(const void *src, void *dst, size_t count, int type,
                         int root, void *own, void *stream) {
  return add(own, stream, make(Broadcast, src, dst, count, type, 0, root),
             isMember(own, root), 1);
}
EXPORT int ncclReduce(const void *src, void *dst, size_t count, int type,
                      int operation, int root, void *own, void *stream) {
  return add(own, stream, make(Reduce, src, dst, count, type, operation, root),
             1, isMember(own, root));
}
EXPORT int ncclSend(const void *src, size_t count, int type, int peer,
                    void *own, void *stream) {
  return add(own, stream, make(Send, src, nullptr, count, type, 0, peer), 1, 0);
}
EXPORT int ncclRecv(void *dst, size_t count, int type, int peer, void *own,
                    void *stream) {
  return add(own, stream, make(Receive, nullptr, dst, count, type, 0, peer), 0,
             1);
}
