//===- FakeNccl.cpp - NCCL's collectives on the host ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The calls of the library, and its communicators; NcclTransports.h moves
/// data, NcclElements.h adds it up, NcclState.h has what is under way.
///
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

#include "NcclTransports.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace fake::nccl;

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
