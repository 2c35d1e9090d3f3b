//===- SocketWorld.cpp - Ranks that are processes, over TCP ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// A group is known by a hash of its members and of how many such groups its
// communicator had before, and a request by its number in its group: creating
// them exchanges nothing.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Communicator/SocketWorld.h"
#include "Meeting/SocketRendezvous.h"
#include "MessageCommunicator.h"
#include "PreparedRequests.h"
#include "SocketCollectives.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <unistd.h>

using namespace cleave::runtime;

/// The request of a key that is a barrier.
static constexpr uint32_t barrierRequest = UINT32_MAX;

struct SocketWorld::Shared {
  SocketLaunch launch;
  SocketMesh mesh;
  /// The number of communicators so far.
  int32_t opened = 0;

  Shared(const SocketLaunch &launch, const std::vector<int> &sockets)
      : launch(launch), mesh(launch.rank, sockets, launch.patienceSeconds) {}
};

namespace {

struct Group;

struct SocketCommunicator : MessageCommunicator<SocketMesh> {
  SocketMesh &mesh;
  std::vector<std::unique_ptr<Group>> groups;
  std::map<std::vector<int32_t>, int32_t> groupsMade;

  SocketCommunicator(SocketMesh &mesh, const cleave_team &team,
                     int processesHere)
      : MessageCommunicator(mesh, team, processesHere), mesh(mesh) {}
};

SocketCommunicator &self(cleave_communicator *c) {
  return *static_cast<SocketCommunicator *>(c);
}

/// What is a `cleave_group` to users.
struct Group {
  SocketCommunicator *owner;
  std::vector<int32_t> ranks;
  int member = 0;
  uint64_t key = 0;
  /// The numbers of requests and of exchanges of bytes so far.
  uint32_t made = 0, exchanged = 0;
  PreparedRequests prepared;

  /// Sets `all` to the bytes of all members; false after a failure. Members may
  /// close meanwhile if `closing`.
  bool gather(const void *own, size_t size, void *all, bool closing = false) {
    struct Exchange {
      MessageBatch batch;
      std::vector<char> own, all;
    };
    auto exchange = std::make_unique<Exchange>();
    const char *begin = static_cast<const char *>(own);
    exchange->own.assign(begin, begin + size);
    exchange->all.resize(ranks.size() * size);
    MessageKey message{key, barrierRequest, ++exchanged};
    char *to = exchange->all.data();
    for (size_t i = 0; i < ranks.size(); ++i)
      if (static_cast<int>(i) != member)
        owner->mesh.receive(ranks[i], message, to + i * size, size,
                            exchange->batch);
    for (size_t i = 0; i < ranks.size(); ++i)
      if (static_cast<int>(i) != member)
        owner->mesh.send(ranks[i], message, exchange->own.data(), size,
                         exchange->batch);
    std::memcpy(to + static_cast<size_t>(member) * size, own, size);
    if (!owner->mesh.complete(exchange->batch, closing ? 0 : owner->number,
                              owner->maySpin)) {
      // The mesh still uses the memory.
      (void)exchange.release();
      return false;
    }
    std::memcpy(all, to, exchange->all.size());
    return true;
  }
};

/// What is a `cleave_request` to users.
struct Request {
  Group *group;
  SocketTransfer transfer;
  bool started = false;
};

Group *self(cleave_group *group) { return reinterpret_cast<Group *>(group); }

Request *self(cleave_request *request) {
  return reinterpret_cast<Request *>(request);
}

cleave_group *makeGroup(cleave_communicator *c, const int32_t *ranks,
                        int32_t count) {
  SocketCommunicator &me = self(c);
  auto group = std::make_unique<Group>();
  group->owner = &me;
  group->ranks.assign(ranks, ranks + std::max(count, 0));
  std::string problem =
      checkGroup(ranks, count, me.rank, me.size, group->member);
  if (!problem.empty()) {
    me.mesh.fail(problem);
    return nullptr;
  }
  if (me.mesh.failed())
    return nullptr;
  std::string name = std::to_string(me.number) + ":" +
                     std::to_string(me.groupsMade[group->ranks]++);
  for (int32_t rank : group->ranks)
    name += "," + std::to_string(rank);
  group->key = hashOf(name);
  me.groups.push_back(std::move(group));
  return reinterpret_cast<cleave_group *>(me.groups.back().get());
}

cleave_request *prepare(cleave_group *given, const cleave_collective *blocks,
                        int32_t count) {
  Group *group = self(given);
  SocketCommunicator &me = *group->owner;
  int members = static_cast<int>(group->ranks.size());
  std::string problem = checkCollective(blocks, count, members);
  if (problem.empty())
    problem = SocketTransfer::check(blocks, count, members);
  if (!problem.empty()) {
    me.mesh.fail(problem);
    return nullptr;
  }
  if (me.mesh.failed())
    return nullptr;
  group->prepared.add(blocks, count, members);
  return reinterpret_cast<cleave_request *>(new Request{
      group,
      SocketTransfer(blocks, count, group->ranks, group->member, group->key,
                     group->made++, me.mesh, me.team, me.staging)});
}

int start(cleave_request *given) {
  Request *request = self(given);
  return request->group->owner->start(*request);
}

int wait(cleave_request *given) {
  Request *request = self(given);
  SocketCommunicator &me = *request->group->owner;
  return me.wait(*request, [&](MessageBatch &batch) {
    return me.mesh.complete(batch, me.number, me.maySpin);
  });
}

/// After a failure the mesh still uses the memory of messages in flight.
void release(cleave_request *given) {
  Request *request = self(given);
  if (!request->group->owner->mesh.failed())
    delete request;
}

int barrier(cleave_group *given) {
  Group *group = self(given);
  SocketMesh &mesh = group->owner->mesh;
  if (mesh.failed())
    return 1;
  PreparedRequests::Outcome outcome = group->prepared.compare(
      group->ranks, [&](const void *own, size_t size, void *all) {
        return group->gather(own, size, all);
      });
  if (!outcome.compared)
    return 1;
  if (outcome.member == 0)
    return 0;
  mesh.note(group->ranks[outcome.member], outcome.text);
  return 1;
}

/// Without a failure, all ranks close together: all messages have arrived then.
void closeRank(cleave_communicator *c) {
  SocketCommunicator &me = self(c);
  Group all;
  all.owner = &me;
  all.ranks.resize(static_cast<size_t>(me.size));
  std::iota(all.ranks.begin(), all.ranks.end(), 0);
  all.member = me.rank;
  all.key = hashOf(std::to_string(me.number) + " closes");
  me.mesh.setClosing(me.number);
  char own = 0;
  std::vector<char> bytes(all.ranks.size());
  if (me.mesh.failed() || !all.gather(&own, 1, bytes.data(), true)) {
    // Gives the others time to report why they end, before a launcher ends
    // them. The mesh still uses the memory of requests.
    ::usleep(500 * 1000);
    return;
  }
  delete &me;
}

constexpr cleave_communicator_api socketApi = {makeGroup,
                                               prepare,
                                               start,
                                               wait,
                                               release,
                                               barrier,
                                               SocketCommunicator::failWith,
                                               SocketCommunicator::errorOf,
                                               SocketCommunicator::setBusy,
                                               SocketCommunicator::isUnnoticed,
                                               SocketCommunicator::held,
                                               closeRank};

} // namespace

SocketWorld::SocketWorld(std::unique_ptr<Shared> shared)
    : shared(std::move(shared)) {}

SocketWorld::~SocketWorld() { shared->mesh.leave(); }

std::unique_ptr<SocketWorld> SocketWorld::connect(const SocketLaunch &launch,
                                                  std::string &error) {
  std::vector<int> sockets;
  error = connectAll(launch, sockets);
  if (!error.empty())
    return nullptr;
  return std::unique_ptr<SocketWorld>(
      new SocketWorld(std::make_unique<Shared>(launch, sockets)));
}

cleave_communicator *SocketWorld::open(const cleave_team &team,
                                       std::string &error) {
  SocketMesh &mesh = shared->mesh;
  if (mesh.failed()) {
    error = mesh.error();
    return nullptr;
  }
  auto *me = new SocketCommunicator(mesh, team, shared->launch.processesHere);
  me->api = &socketApi;
  me->rank = mesh.rank();
  me->size = mesh.size();
  me->number = ++shared->opened;
  return me;
}
