//===- NcclTransports.cpp - The data that calls move
//-----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "NcclTransports.h"
#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>

using namespace fake::nccl;

namespace {

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

} // namespace

int fake::nccl::endGroup() {
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

int fake::nccl::add(void *handle, void *stream, Call call, size_t sent,
                    size_t received) {
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
