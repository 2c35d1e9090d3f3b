//===- SharedTransport.cpp - Collectives of ranks on one GPU
//---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "SharedTransport.h"
#include "cleave/Executable/Cuda/KernelArguments.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Runtime/Communicator/ReduceBlocks.h"
#include "cleave/Support/TreeOrder.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/Endian.h"

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <random>
#include <set>

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;
using llvm::Error;
using llvm::Expected;

constexpr size_t mostRanks = std::extent_v<decltype(ReduceArguments::srcs)>;

/// One collective, as its members see it.
struct SharedTransport::Meeting {
  struct Member {
    std::vector<CollectiveCall> calls;
    /// What it sends is there; its share is done.
    CUevent ready = nullptr, done = nullptr;
    /// How often each has been recorded.
    uint64_t started = 0, enqueued = 0;
  };
  std::vector<Member> members;
};

/// What the ranks of a session share.
struct SharedTransport::World {
  std::mutex mutex;
  std::condition_variable changed;
  /// The collectives of each group, transfers apart, in order.
  std::map<std::pair<std::vector<int32_t>, bool>,
           std::deque<SharedTransport::Meeting>>
      meetings;
};

//===----------------------------------------------------------------------===//
// Creation
//===----------------------------------------------------------------------===//

Expected<std::unique_ptr<SharedTransport>>
SharedTransport::open(Gpu &gpu, Requests &requests,
                      cleave_communicator *communicator) {
  // That no other process has.
  static const uint64_t process = [] {
    std::random_device random;
    return uint64_t(random()) << 32 | random();
  }();
  static std::mutex mutex;
  static std::map<uint64_t, std::shared_ptr<World>> worlds;
  static uint64_t made = 0;
  // 1. Whether all ranks can.
  Expected<std::string> id = gpu.getId();
  if (!id)
    return id.takeError();
  std::string own =
      *id + (environment("CLEAVE_SHARED_GPU") == "off" ? "0" : "1");
  own.append(reinterpret_cast<const char *>(&process), sizeof process);
  Expected<std::string> all = requests.gather(own);
  if (!all)
    return all.takeError();
  size_t ranks = all->size() / own.size();
  std::set<std::string> different;
  for (size_t rank = 0; rank < ranks; ++rank)
    different.insert(all->substr(rank * own.size(), own.size()));
  if (different.size() > 1 || own[id->size()] == '0' || ranks > mostRanks)
    return nullptr;
  // 2. What they share is that of the first rank.
  uint64_t number = 0;
  std::shared_ptr<World> world;
  if (communicator->rank == 0) {
    std::lock_guard<std::mutex> lock(mutex);
    number = ++made;
    world = worlds[number] = std::make_shared<World>();
  }
  std::vector<int32_t> everyone(ranks);
  std::iota(everyone.begin(), everyone.end(), 0);
  if (Error error = requests.broadcast(
          everyone, {reinterpret_cast<char *>(&number), sizeof number}))
    return error;
  if (!world) {
    std::lock_guard<std::mutex> lock(mutex);
    world = worlds[number];
  }
  // Nobody asks for it when all have it.
  if (Expected<std::string> taken = requests.gather("1"); !taken)
    return taken.takeError();
  if (communicator->rank == 0) {
    std::lock_guard<std::mutex> lock(mutex);
    worlds.erase(number);
  }
  if (!world)
    return makeError("ranks that share a GPU do not find each other");
  return std::unique_ptr<SharedTransport>(
      new SharedTransport(gpu, requests, communicator, std::move(world)));
}

Expected<SharedTransport::Staging> SharedTransport::take(int64_t bytes) {
  if (bytes == 0)
    return Staging();
  int64_t end = 0;
  for (Staging &own : staging) {
    end = own.offset + own.bytes;
    if (own.used || own.bytes < bytes)
      continue;
    own.used = true;
    return own;
  }
  Expected<CUdeviceptr> memory = gpu.allocate(bytes);
  if (!memory)
    return memory.takeError();
  staging.push_back({*memory, end, bytes, /*used=*/true});
  return staging.back();
}

void SharedTransport::release(const Collective &own) {
  for (Staging &other : staging)
    if (own.staging.bytes > 0 && other.offset == own.staging.offset)
      other.used = false;
}

Expected<SharedTransport::Collective *>
SharedTransport::make(const CollectiveCommand &command,
                      llvm::function_ref<uint64_t(Ref)> at) {
  std::vector<int32_t> ranks = requests.membersOf(command);
  Collective &own = collectives.emplace_back();
  own.member = static_cast<size_t>(llvm::find(ranks, communicator->rank) -
                                   ranks.begin());
  own.transfer = command.isTransfer();
  Expected<Staging> packed = take(collectiveStagingBytes(command));
  if (!packed)
    return packed.takeError();
  own.staging = {Place::Staging, packed->offset, packed->bytes};
  CollectiveMember where{static_cast<int32_t>(own.member), at, packed->memory};
  where.reducesFloats = true;
  Expected<CollectivePlan> plan = planCollective(command, where);
  if (!plan)
    return plan.takeError();
  if (Error error = findLaunches(gpu, *plan, own.before, own.after))
    return error;
  if (std::string symbol = reductionSymbol(command); !symbol.empty()) {
    Expected<CUfunction> function = gpu.find(symbol, 0);
    if (!function)
      return function.takeError();
    own.reduction = *function;
  }
  Expected<CUevent> ready = gpu.makeEvent();
  if (!ready)
    return ready.takeError();
  Expected<CUevent> done = gpu.makeEvent();
  if (!done)
    return done.takeError();
  std::pair<std::vector<int32_t>, bool> key{ranks, own.transfer};
  size_t number = counts[key]++;
  std::lock_guard<std::mutex> lock(world->mutex);
  std::deque<Meeting> &meetings = world->meetings[key];
  if (meetings.size() <= number)
    meetings.resize(number + 1);
  own.meeting = &meetings[number];
  own.meeting->members.resize(ranks.size());
  Meeting::Member &me = own.meeting->members[own.member];
  me.calls = std::move(plan->calls);
  me.ready = *ready;
  me.done = *done;
  return &own;
}

//===----------------------------------------------------------------------===//
// Exchanges
//===----------------------------------------------------------------------===//

Error SharedTransport::waitUntil(llvm::function_ref<bool()> done) const {
  std::unique_lock<std::mutex> lock(world->mutex);
  while (!done()) {
    world->changed.wait_for(lock, std::chrono::milliseconds(10));
    if (const char *text = communicator->api->error(communicator); *text)
      return makeError(text);
  }
  return Error::success();
}

Error SharedTransport::copy(uint64_t from, uint64_t to,
                            const CollectiveCall &call) const {
  return gpu.check(
      gpu.driver.cuMemcpyDtoDAsync(
          to, from, static_cast<size_t>(call.elements * byteSize(call.dtype)),
          gpu.communication),
      "copying what a rank sends");
}

/// The share of this member: of an all-reduce some elements for all members,
/// else all elements that it receives.
Error SharedTransport::reduce(const Collective &own, size_t index) const {
  const std::vector<Meeting::Member> &members = own.meeting->members;
  const CollectiveCall &call = members[own.member].calls[index];
  auto count = static_cast<int64_t>(members.size());
  auto me = static_cast<int64_t>(own.member);
  ReduceArguments a{};
  a.members = static_cast<int>(count);
  a.end = call.elements;
  int64_t skipped = 0;
  if (call.kind == CollectiveCall::AllReduce) {
    a.begin = shareBegin(call.elements, me, count);
    a.end = shareBegin(call.elements, me + 1, count);
    a.writers = a.members;
  } else {
    if (call.kind == CollectiveCall::Reduce && own.member != size_t(call.peer))
      return Error::success();
    if (call.kind == CollectiveCall::ReduceScatter)
      skipped = me * call.elements * byteSize(call.dtype);
    a.writers = 1;
    a.dsts[0] = reinterpret_cast<void *>(call.dst);
  }
  for (int64_t k = 0; k < count; ++k) {
    auto from = static_cast<size_t>(cleave::treeOrder(k, count));
    a.srcs[k] = reinterpret_cast<const void *>(members[from].calls[index].src +
                                               static_cast<uint64_t>(skipped));
    if (call.kind == CollectiveCall::AllReduce)
      a.dsts[k] = reinterpret_cast<void *>(
          members[static_cast<size_t>(k)].calls[index].dst);
  }
  if (a.begin == a.end)
    return Error::success();
  Launch launch;
  launch.grid[0] = static_cast<uint32_t>((a.end - a.begin + 255) / 256);
  launch.block = 256;
  launch.add(a);
  return gpu.launch(own.reduction, launch, gpu.communication);
}

/// What one call of this member makes it do. What is sent is taken by who
/// receives it; `received` counts what was, by sender.
Error SharedTransport::enqueue(Collective &own, const CollectiveCall &call,
                               size_t index,
                               std::map<int32_t, size_t> &received) const {
  const std::vector<Meeting::Member> &members = own.meeting->members;
  auto size = static_cast<uint64_t>(call.elements * byteSize(call.dtype));
  switch (call.kind) {
  case CollectiveCall::AllReduce:
  case CollectiveCall::ReduceScatter:
  case CollectiveCall::Reduce:
    return reduce(own, index);
  case CollectiveCall::AllGather:
    for (size_t other = 0; other < members.size(); ++other)
      if (Error error = copy(members[other].calls[index].src,
                             call.dst + other * size, call))
        return error;
    return Error::success();
  case CollectiveCall::Broadcast:
    return copy(members[static_cast<size_t>(call.peer)].calls[index].src,
                call.dst, call);
  case CollectiveCall::Send:
    return Error::success();
  case CollectiveCall::Receive: {
    size_t number = received[call.peer]++;
    for (const CollectiveCall &other :
         members[static_cast<size_t>(call.peer)].calls)
      if (other.kind == CollectiveCall::Send &&
          other.peer == static_cast<int32_t>(own.member) && number-- == 0)
        return copy(other.src, call.dst, call);
    return makeError("a rank receives what no rank sends");
  }
  }
  return makeError("unknown exchange");
}

Error SharedTransport::start(Collective &own) {
  Meeting::Member &me = own.meeting->members[own.member];
  for (const auto &[function, launch] : own.before)
    if (Error error = gpu.launch(function, launch, gpu.communication))
      return error;
  if (Error error = gpu.check(
          gpu.driver.cuEventRecord(me.ready, gpu.communication), "an event"))
    return error;
  ++own.times;
  {
    std::lock_guard<std::mutex> lock(world->mutex);
    me.started = own.times;
  }
  world->changed.notify_all();
  return Error::success();
}

Error SharedTransport::finish(Collective &own) {
  std::vector<Meeting::Member> &members = own.meeting->members;
  Meeting::Member &me = members[own.member];
  // A sender waits for the receiver alone, and that one for it.
  bool sends = own.transfer && own.member == 0,
       receives = own.transfer && own.member == 1;
  auto await = [&](CUevent event) {
    return gpu.check(gpu.driver.cuStreamWaitEvent(gpu.communication, event, 0),
                     "an event");
  };
  // 1. This member's share, of what all have sent.
  if (!sends) {
    if (Error error = waitUntil([&] {
          return llvm::all_of(members, [&](const Meeting::Member &other) {
            return (receives && &other == &me) || other.started >= own.times;
          });
        }))
      return error;
    for (const Meeting::Member &other : members)
      if (&other != &me)
        if (Error error = await(other.ready))
          return error;
    std::map<int32_t, size_t> received;
    for (size_t i = 0; i < me.calls.size(); ++i)
      if (Error error = enqueue(own, me.calls[i], i, received))
        return error;
    if (Error error = gpu.check(
            gpu.driver.cuEventRecord(me.done, gpu.communication), "an event"))
      return error;
    {
      std::lock_guard<std::mutex> lock(world->mutex);
      me.enqueued = own.times;
    }
    world->changed.notify_all();
  }
  // 2. Others read what this one sends, or write what it receives.
  if (!receives) {
    auto isOther = [&](const Meeting::Member &other) { return &other != &me; };
    if (Error error = waitUntil([&] {
          return llvm::all_of(members, [&](const Meeting::Member &other) {
            return !isOther(other) || other.enqueued >= own.times;
          });
        }))
      return error;
    for (const Meeting::Member &other : members)
      if (isOther(other))
        if (Error error = await(other.done))
          return error;
  }
  for (const auto &[function, launch] : own.after)
    if (Error error = gpu.launch(function, launch, gpu.communication))
      return error;
  return Error::success();
}
