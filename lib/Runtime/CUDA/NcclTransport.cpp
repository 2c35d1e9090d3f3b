//===- NcclTransport.cpp - Collectives by NCCL
//-----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "NcclTransport.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Executable/Format/ShardLayout.h"
#include "cleave/Support/Patience.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/Support/xxhash.h"

#include <cstdlib>
#include <set>
#include <thread>
#include <unistd.h>

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;
using llvm::Error;
using llvm::Expected;

//===----------------------------------------------------------------------===//
// Creation
//===----------------------------------------------------------------------===//

/// Tells this process from others, also those of other machines.
static std::string processKey() {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  uint64_t key = llvm::xxh3_64bits(
      (llvm::StringRef(host) + " " + llvm::Twine(::getpid())).str());
  return std::string(reinterpret_cast<const char *>(&key), sizeof key);
}

NcclTransport::NcclTransport(const Program &program, Gpu &gpu,
                             const Nccl &library, Requests &requests,
                             cleave_communicator *communicator)
    : program(program), gpu(gpu), library(library), requests(requests),
      communicator(communicator), staging(program),
      patience(std::chrono::seconds(patienceSeconds())) {}

Expected<std::unique_ptr<NcclTransport>>
NcclTransport::open(const Program &program, Gpu &gpu, Requests &requests,
                    cleave_communicator *communicator) {
  llvm::StringRef wanted = environment("CLEAVE_NCCL");
  // 1. Whether all ranks can: each tells the others its GPU, or why not.
  Expected<std::string> id = gpu.getId();
  if (!id)
    return id.takeError();
  std::string problem;
  const Nccl *library = nullptr;
  if (wanted == "off")
    problem = "it is turned off";
  else if (Expected<const Nccl *> opened = Nccl::get())
    library = *opened;
  else
    problem = llvm::toString(opened.takeError());
  // Ranks of one process would wait for each other on a GPU that they share.
  // Those of several take turns on it: slow, and only where it is asked for.
  bool shares = wanted == "on";
  std::string process = processKey();
  size_t size = id->size() + process.size() + 1;
  Expected<std::string> all =
      requests.gather(*id + process + std::string(1, library ? 1 : 0));
  if (!all)
    return all.takeError();
  std::set<std::string> distinct;
  for (size_t rank = 0; rank * size < all->size(); ++rank) {
    std::string own = all->substr(rank * size, size);
    if (problem.empty() && own.back() == 0)
      problem = "rank " + std::to_string(rank) + " has no NCCL";
    own.resize(shares ? size - 1 : id->size());
    if (problem.empty() && !distinct.insert(own).second)
      problem =
          shares ? "ranks of one process share a GPU" : "ranks share a GPU";
  }
  if (!problem.empty()) {
    if (wanted == "on")
      return makeError("NCCL cannot be used: " + problem);
    return nullptr;
  }
  // 2. Communicators.
  std::unique_ptr<NcclTransport> exchange(
      new NcclTransport(program, gpu, *library, requests, communicator));
  if (Error error = exchange->connect()) {
    std::string message = llvm::toString(std::move(error));
    communicator->api->fail(communicator, message.c_str());
    return makeError(communicator->api->error(communicator));
  }
  return exchange;
}

/// Ranks create the groups that they share in one order: a rank waits in one
/// for the others.
Error NcclTransport::connect() {
  if (Error error = requests.makeGroups())
    return error;
  std::set<std::pair<std::vector<int32_t>, bool>> all;
  for (const Part &part : program.parts)
    for (const Command &command : part.commands)
      if (const CollectiveCommand &c = command.collective;
          command.kind == CommandKind::Collective &&
          (isPlannable(c) || sendsRows(c)))
        all.insert({requests.membersOf(c), c.isTransfer()});
  Expected<CUdeviceptr> made = gpu.allocate(staging.getBytes());
  if (!made)
    return made.takeError();
  memory = *made;
  for (const auto &[ranks, transfer] : all)
    if (Error error = create(ranks, transfer))
      return error;
  return Error::success();
}

Error NcclTransport::create(const std::vector<int32_t> &ranks, bool transfer) {
  Group &group = groups[{ranks, transfer}];
  group.members = static_cast<int32_t>(ranks.size());
  group.member = static_cast<int32_t>(llvm::find(ranks, communicator->rank) -
                                      ranks.begin());
  if (transfer) {
    Expected<CUstream> stream = gpu.makeStream();
    if (!stream)
      return stream.takeError();
    group.stream = *stream;
  }
  group.transfer = transfer;
  group.name = "ranks";
  for (int32_t rank : ranks)
    group.name += " " + std::to_string(rank);
  nccl::Id id{};
  if (group.member == 0)
    if (Error error = library.check(library.makeId(&id), "an identity"))
      return error;
  if (Error error = requests.broadcast(ranks, id.bytes))
    return error;
  nccl::Config config;
  if (Error error =
          library.check(library.create(&group.communicator, group.members, id,
                                       group.member, &config),
                        "connecting " + group.name))
    return error;
  if (Error error = settle(group, "connecting " + group.name))
    return error;
  group.connected = true;
  return tryOut(group);
}

/// The first exchange connects the members, for which their hosts meet; later
/// they do not.
Error NcclTransport::tryOut(Group &group) {
  std::string what = "the first exchange of " + group.name;
  CollectiveCall first;
  first.kind = !group.transfer     ? CollectiveCall::AllReduce
               : group.member == 0 ? CollectiveCall::Send
                                   : CollectiveCall::Receive;
  first.src = first.dst = memory;
  first.elements = 1;
  first.dtype = DType::I32;
  first.peer = 1 - group.member;
  if (Error error = call(group, first, streamOf(group)))
    return error;
  if (Error error = settle(group, what))
    return error;
  return poll(
      [&]() -> Expected<bool> {
        CUresult code = gpu.driver.cuStreamQuery(streamOf(group));
        if (code == CUDA_ERROR_NOT_READY)
          return false;
        if (Error error = gpu.check(code, what))
          return error;
        return true;
      },
      what);
}

/// What has failed is not waited for: the others do not come.
NcclTransport::~NcclTransport() {
  if (Error error = gpu.makeCurrent()) {
    llvm::consumeError(std::move(error));
    return;
  }
  constexpr std::chrono::seconds most(5);
  bool regular = *communicator->api->error(communicator) == 0;
  Clock::time_point begin = Clock::now();
  for (auto &[key, group] : groups)
    if (group.communicator && regular)
      (void)library.finalize(group.communicator);
  for (auto &[key, group] : groups) {
    if (!group.communicator)
      continue;
    int status = nccl::InProgress;
    while (regular && status == nccl::InProgress) {
      if (library.asyncError(group.communicator, &status) ||
          Clock::now() - begin > most)
        regular = false;
      if (status == nccl::InProgress)
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    if (regular && status == nccl::Success) {
      (void)library.destroy(group.communicator);
      group.communicator = nullptr;
    }
  }
  abort();
}

//===----------------------------------------------------------------------===//
// Failures
//===----------------------------------------------------------------------===//

/// All of them at once: the abort of one waits for the device, and so for what
/// hangs in another that has not been told to end.
void NcclTransport::abort() {
  (void)library.groupStart();
  for (auto &[key, group] : groups)
    if (group.communicator) {
      (void)library.abort(group.communicator);
      group.communicator = nullptr;
    }
  (void)library.groupEnd();
}

/// Ends what is under way on this rank; the others find that this one has
/// failed, or their own error.
Error NcclTransport::fail(Error error) {
  failure = llvm::toString(std::move(error));
  abort();
  return makeError(failure);
}

Error NcclTransport::watch() {
  if (!failure.empty())
    return makeError(failure);
  if (const char *text = communicator->api->error(communicator); *text)
    return fail(makeError(text));
  // 1. What is under way: of each stream the first begins next.
  llvm::SmallPtrSet<CUstream, 8> streams;
  const Collective *late = nullptr;
  std::map<const Group *, const Collective *> first;
  Clock::time_point now = Clock::now();
  llvm::erase_if(underWay, [&](Collective *own) {
    if (gpu.driver.cuEventQuery(own->ended) == CUDA_SUCCESS) {
      own->listed = false;
      return true;
    }
    first.insert({own->group, own});
    if (!streams.insert(own->stream).second)
      return false;
    if (!own->begun && gpu.driver.cuEventQuery(own->ready) == CUDA_SUCCESS)
      own->begun = now;
    if (own->begun && now - *own->begun > patience)
      late = own;
    return false;
  });
  // 2. Errors.
  for (const auto &[key, group] : groups) {
    if (!group.communicator)
      continue;
    int status = nccl::Success;
    Error error = library.check(library.asyncError(group.communicator, &status),
                                "asking for errors");
    if (!error)
      error = library.check(
          status, group.connected ? "an exchange" : "connecting " + group.name);
    if (!error)
      continue;
    std::string text = llvm::toString(std::move(error));
    auto it = first.find(&group);
    return fail(
        makeError(it == first.end() ? text : it->second->name + ": " + text));
  }
  if (late)
    return fail(makeError(late->name + " has not ended after " +
                          llvm::Twine(patience.count() / 1000) +
                          " s: not all ranks take part in it; " +
                          patienceHint()));
  return Error::success();
}

Error NcclTransport::follow(int64_t calls) {
  // Half of what a queue takes.
  constexpr int64_t most = 512;
  enqueued += calls;
  auto isFar = [&] {
    return !underWay.empty() && enqueued - underWay.front()->behind > most;
  };
  while (isFar()) {
    if (Error error = watch())
      return error;
    if (isFar())
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return Error::success();
}

Error NcclTransport::poll(llvm::function_ref<Expected<bool>()> done,
                          const llvm::Twine &what) {
  Clock::time_point begin = Clock::now();
  while (true) {
    Expected<bool> ended = done();
    if (!ended)
      return fail(ended.takeError());
    if (*ended)
      return Error::success();
    if (Error error = watch())
      return error;
    if (Clock::now() - begin > patience)
      return fail(makeError(what + " has not ended after " +
                            llvm::Twine(patience.count() / 1000) + " s"));
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

/// Calls may return before they have enqueued anything.
Error NcclTransport::settle(const Group &group, const llvm::Twine &what) {
  int status = nccl::Success;
  auto ask = [&]() -> Expected<bool> {
    if (Error error = library.check(
            library.asyncError(group.communicator, &status), what))
      return error;
    if (Error error = library.check(status, what))
      return error;
    return status != nccl::InProgress;
  };
  return poll(ask, what);
}

//===----------------------------------------------------------------------===//
// Exchanges
//===----------------------------------------------------------------------===//

Expected<NcclTransport::Collective *>
NcclTransport::make(const CollectiveCommand &command,
                    llvm::function_ref<uint64_t(Ref)> at, std::string name) {
  auto it = groups.find({requests.membersOf(command), command.isTransfer()});
  if (it == groups.end())
    return makeError("a collective of an unknown group");
  Expected<CollectivePlan> plan{CollectivePlan()};
  if (!sendsRows(command))
    plan = planCollective(
        command, {it->second.member, at,
                  memory + static_cast<uint64_t>(staging.offsetOf(command))});
  if (!plan)
    return plan.takeError();
  Collective &own = collectives.emplace_back();
  if (sendsRows(command)) {
    own.rows = std::make_unique<Rows>();
    Rows &rows = *own.rows;
    rows.src = at(command.src);
    rows.dst = at(command.dst);
    rows.sendOffsets = at(command.sendOffsets);
    rows.receiveOffsets = at(command.receiveOffsets);
    for (int64_t size : llvm::ArrayRef(command.sizes).drop_front())
      rows.rowElements *= size;
    rows.held = command.sizes[0];
    rows.bound = command.bound;
    rows.dtype = command.dtype;
    int32_t members = it->second.members;
    rows.all.resize(static_cast<size_t>(RowOffsets::count(members) * members));
    rows.offsets = RowOffsets(members);
    rows.offsets.setAll(rows.all.data());
  }
  own.group = &it->second;
  own.stream = streamOf(it->second);
  own.staging = {Place::Staging, staging.offsetOf(command),
                 collectiveStagingBytes(command)};
  own.calls = std::move(plan->calls);
  own.name = "the " + collectiveName(command.collective).str() + " of " + name;
  if (Error error = findLaunches(gpu, *plan, own.before, own.after))
    return error;
  for (CUevent *event : {&own.ready, &own.ended}) {
    Expected<CUevent> made = gpu.makeEvent();
    if (!made)
      return made.takeError();
    *event = *made;
  }
  return &own;
}

static int typeOf(DType type) {
  switch (type) {
  case DType::F64:
    return nccl::F64;
  case DType::F32:
    return nccl::F32;
  case DType::F16:
    return nccl::F16;
  case DType::BF16:
    return nccl::BF16;
  case DType::I64:
    return nccl::I64;
  case DType::I32:
    return nccl::I32;
  case DType::I8:
    return nccl::I8;
  default:
    return nccl::U8; // Truth values, and bytes that are only moved.
  }
}

Error NcclTransport::call(const Group &group, const CollectiveCall &c,
                          CUstream stream) const {
  auto *src = reinterpret_cast<const void *>(c.src);
  auto *dst = reinterpret_cast<void *>(c.dst);
  auto count = static_cast<size_t>(c.elements);
  int type = typeOf(c.dtype),
      operation = c.reduction == ReductionKind::Sum   ? nccl::Sum
                  : c.reduction == ReductionKind::Max ? nccl::Max
                                                      : nccl::Min;
  Nccl::Communicator own = group.communicator;
  int status = nccl::Success;
  switch (c.kind) {
  case CollectiveCall::AllReduce:
    status = library.allReduce(src, dst, count, type, operation, own, stream);
    break;
  case CollectiveCall::AllGather:
    status = library.allGather(src, dst, count, type, own, stream);
    break;
  case CollectiveCall::ReduceScatter:
    status =
        library.reduceScatter(src, dst, count, type, operation, own, stream);
    break;
  case CollectiveCall::Broadcast:
    status = library.broadcast(src, dst, count, type, c.peer, own, stream);
    break;
  case CollectiveCall::Reduce:
    status =
        library.reduce(src, dst, count, type, operation, c.peer, own, stream);
    break;
  case CollectiveCall::Send:
    status = library.send(src, count, type, c.peer, own, stream);
    break;
  case CollectiveCall::Receive:
    status = library.receive(dst, count, type, c.peer, own, stream);
    break;
  }
  return library.check(status, "starting it");
}

Error NcclTransport::callAll(const Collective &own,
                             llvm::ArrayRef<CollectiveCall> calls) {
  if (calls.empty())
    return Error::success();
  Error error = library.check(library.groupStart(), "a group");
  for (const CollectiveCall &c : calls)
    if (!error)
      error = call(*own.group, c, own.stream);
  int status = library.groupEnd();
  if (!error)
    error = library.check(status, "starting it");
  if (error)
    return fail(makeError(own.name + ": " + llvm::toString(std::move(error))));
  if (status == nccl::InProgress)
    return settle(*own.group, own.name);
  return Error::success();
}

Error NcclTransport::startRows(Collective &own) {
  Rows &rows = *own.rows;
  const Group &group = *own.group;
  const Driver &driver = gpu.driver;
  auto check = [&](CUresult code) -> Error {
    if (Error error = gpu.check(code, "copying offsets"))
      return fail(
          makeError(own.name + ": " + llvm::toString(std::move(error))));
    return Error::success();
  };
  // 1. The offsets of all members come to the host of each.
  auto lists = static_cast<uint64_t>(4 * RowOffsets::count(group.members));
  uint64_t one = memory + static_cast<uint64_t>(own.staging.offset),
           all = one + 2 * lists;
  for (auto [list, from] :
       {std::pair(one, rows.sendOffsets), {one + lists, rows.receiveOffsets}})
    if (Error error =
            check(driver.cuMemcpyDtoDAsync(list, from, lists, own.stream)))
      return error;
  CollectiveCall gather;
  gather.kind = CollectiveCall::AllGather;
  gather.src = one;
  gather.dst = all;
  gather.elements = RowOffsets::count(group.members);
  gather.dtype = DType::I64;
  if (Error error = callAll(own, gather))
    return error;
  if (Error error = check(driver.cuMemcpyDtoHAsync(
          rows.all.data(), all, 8 * rows.all.size(), own.stream)))
    return error;
  // Work before it takes its time.
  while (driver.cuEventQuery(own.ready) == CUDA_ERROR_NOT_READY) {
    if (Error error = watch())
      return error;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  if (Error error = poll(
          [&]() -> Expected<bool> {
            CUresult code = driver.cuStreamQuery(own.stream);
            if (code == CUDA_ERROR_NOT_READY)
              return false;
            if (Error error = gpu.check(code, own.name))
              return error;
            return true;
          },
          own.name))
    return error;
  // 2. All find the same.
  if (std::string why = rows.offsets.problem(rows.held, rows.bound);
      !why.empty())
    return fail(makeError(own.name + ": " + why));
  own.calls.clear();
  int64_t bytes = rows.rowElements * byteSize(rows.dtype);
  auto add = [&](CollectiveCall::Kind kind, uint64_t at, int64_t first,
                 int64_t count, int32_t peer) {
    if (count == 0 || rows.rowElements == 0)
      return;
    CollectiveCall &c = own.calls.emplace_back();
    c.kind = kind;
    c.src = c.dst = at + static_cast<uint64_t>(first * bytes);
    c.elements = count * rows.rowElements;
    c.dtype = rows.dtype;
    c.peer = peer;
  };
  const RowOffsets &offsets = rows.offsets;
  for (int32_t other = 0; other < group.members; ++other) {
    add(CollectiveCall::Send, rows.src, offsets.sendBegin(group.member, other),
        offsets.rows(group.member, other), other);
    add(CollectiveCall::Receive, rows.dst,
        offsets.receiveBegin(group.member, other),
        offsets.rows(other, group.member), other);
  }
  if (Error error = callAll(own, own.calls))
    return error;
  int64_t received = offsets.received(group.member),
          behind = (rows.bound - received) * bytes;
  if (behind == 0)
    return Error::success();
  return check(
      driver.cuMemsetD8Async(rows.dst + static_cast<uint64_t>(received * bytes),
                             0, static_cast<size_t>(behind), own.stream));
}

Error NcclTransport::start(Collective &own) {
  if (!failure.empty())
    return makeError(failure);
  const Driver &driver = gpu.driver;
  CUstream stream = own.stream;
  auto named = [&](Error error) {
    return fail(makeError(own.name + ": " + llvm::toString(std::move(error))));
  };
  if (Error error =
          gpu.check(driver.cuEventRecord(own.ready, stream), "an event"))
    return named(std::move(error));
  for (const auto &[function, launch] : own.before)
    if (Error error = gpu.launch(function, launch, stream))
      return named(std::move(error));
  if (Error error = own.rows ? startRows(own) : callAll(own, own.calls))
    return error;
  for (const auto &[function, launch] : own.after)
    if (Error error = gpu.launch(function, launch, stream))
      return named(std::move(error));
  own.begun.reset();
  own.behind = enqueued;
  if (!own.listed)
    underWay.push_back(&own);
  own.listed = true;
  return Error::success();
}
