//===- MpiCommunicator.cpp - Ranks that are processes of MPI --------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// One thread calls MPI. It never blocks in MPI while a step runs: it polls, and
// checks between polls whether the heartbeats found a missing process.
//
//===----------------------------------------------------------------------===//

#include "../Communicator/MessageCommunicator.h"
#include "../Communicator/PreparedRequests.h"
#include "Heartbeat.h"
#include "MpiCollectives.h"
#include "cleave/Runtime/Communicator/Communicator.h"
#include "cleave/Support/Patience.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <unistd.h>

using namespace cleave::runtime;

/// The time after which a rank that has ended regularly is not waited for any
/// longer: all its messages have then arrived.
static constexpr double leftSeconds = 3.5;

/// The time after which it is said who is waited for, and that for which ranks
/// which all wait are waited for in addition: another one may know why.
static constexpr double saySeconds = 5;

/// After waiting for this time, a thread sleeps between two polls.
static constexpr double yieldSeconds = 0.02;

/// The largest message of one MPI call over all members: counts and
/// displacements are int, and libraries add some of them up.
static constexpr int64_t mostMessageBytes = int64_t(1) << 30;

namespace {

/// MPI is started once in a process, for all its sessions.
struct Process {
  int rank = 0, size = 0;
  /// Processes of this machine.
  int local = 1;
  /// Bytes of one exchange; larger ones are sent in pieces.
  int64_t messageBytes = 0;
  /// The number of communicators so far.
  int32_t opened = 0;
  Heartbeat heartbeat;
};

Process *process = nullptr;

struct MpiCommunicator : MessageCommunicator<Heartbeat> {
  MPI_Comm world = MPI_COMM_NULL;
  Heartbeat &heartbeat;
  std::vector<std::unique_ptr<cleave_group>> groups;
  double patience = patienceSeconds();

  MpiCommunicator(Heartbeat &heartbeat, const cleave_team &team,
                  int processesHere)
      : MessageCommunicator(heartbeat, team, processesHere),
        heartbeat(heartbeat) {}

  std::vector<int32_t> everyone() const {
    std::vector<int32_t> ranks(static_cast<size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
};

MpiCommunicator &self(cleave_communicator *c) {
  return *static_cast<MpiCommunicator *>(c);
}

double seconds() {
  timespec time;
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
}

} // namespace

/// Says for whom a thread waits, and ends all when it has waited too long.
struct Wait {
  MpiCommunicator &owner;
  double last = seconds(), stopped = 0;
  bool said = false;

  explicit Wait(MpiCommunicator &owner) : owner(owner) {
    owner.heartbeat.addWaiting(1);
  }
  ~Wait() { owner.heartbeat.addWaiting(-1); }

  void judge(const std::vector<int32_t> &ranks, double time) {
    // Time in which this process did not run is none.
    double now = seconds();
    if (now - last > 1)
      stopped += now - last;
    last = now;
    time -= stopped;
    double patience = owner.patience;
    if (time < std::min(saySeconds, patience))
      return;
    std::string whom;
    int reason = -1;
    bool writes = false;
    for (int32_t rank : ranks) {
      Heartbeat::State state = owner.heartbeat.stateOf(rank);
      if (rank == owner.rank || state == Heartbeat::Waits)
        continue;
      whom += (whom.empty() ? "rank " : ", rank ") + std::to_string(rank);
      reason = reason < 0 ? rank : reason;
      writes |= state == Heartbeat::Writes;
    }
    double most = writes ? patience * writingPatience : patience;
    if (!said && reason >= 0 && time >= std::max(patience / 10, saySeconds)) {
      said = true;
      std::fprintf(stderr,
                   "rank %d waits for %s%s (for %.0f s, at most %.0f s)\n",
                   owner.rank, whom.c_str(),
                   writes ? ", which reads or writes files" : "", time, most);
    }
    std::string hint = " for " + std::to_string(static_cast<int>(patience)) +
                       " s; " + patienceHint();
    if (reason >= 0 && time >= most)
      owner.heartbeat.accuse(
          reason, (writes ? "reads or writes files while others wait for it"
                          : "does not come to what others wait for: it is busy "
                            "with something else,") +
                      hint);
    else if (reason < 0 && time >= patience + saySeconds)
      owner.heartbeat.accuse(owner.rank,
                             "waits for others, and these for others," + hint);
  }
};

struct cleave_group {
  MpiCommunicator *owner;
  std::vector<int32_t> ranks;
  MPI_Comm comm = MPI_COMM_NULL;
  int member = 0;
  /// The number of requests so far, for their tags.
  int made = 0;
  PreparedRequests prepared;

  /// Waits for messages of this group; false if the communicator has failed.
  bool complete(std::vector<MPI_Request> &requests) const {
    double begin = seconds();
    std::optional<Wait> wait;
    for (int64_t turn = 0;; ++turn) {
      int done = 0;
      MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done,
                  MPI_STATUSES_IGNORE);
      if (done)
        return true;
      if (owner->heartbeat.failed())
        return false;
      if (turn < (owner->maySpin ? 2000 : 50))
        continue;
      // If many processes share a core, each turn takes long.
      if (turn < 4000 && seconds() - begin < yieldSeconds) {
        ::sched_yield();
        continue;
      }
      timespec pause{0, 100 * 1000};
      ::nanosleep(&pause, nullptr);
      if (!wait)
        wait.emplace(*owner);
      if (!ranks.empty())
        wait->judge(ranks, seconds() - begin);
      else if (owner->number > 0)
        wait->judge(owner->everyone(), seconds() - begin);
      if (seconds() - begin > leftSeconds)
        for (int32_t rank : ranks) {
          if (owner->heartbeat.hasLeft(rank))
            owner->heartbeat.blame(rank, "has ended while others wait for it");
          else if (owner->heartbeat.isClosing(rank, owner->number))
            owner->heartbeat.blame(
                rank, "has closed the program while others wait for it");
        }
    }
  }
};

struct cleave_request {
  cleave_group *group;
  MpiTransfer transfer;
  bool started = false;
};

namespace {

cleave_group *makeGroup(cleave_communicator *c, const int32_t *ranks,
                        int32_t count) {
  MpiCommunicator &me = self(c);
  auto group = std::make_unique<cleave_group>();
  group->owner = &me;
  group->ranks.assign(ranks, ranks + std::max(count, 0));
  std::string problem =
      checkGroup(ranks, count, me.rank, me.size, group->member);
  if (!problem.empty()) {
    me.heartbeat.fail(problem);
    return nullptr;
  }
  if (me.heartbeat.failed())
    return nullptr;
  MPI_Group all, some;
  MPI_Comm_group(me.world, &all);
  MPI_Group_incl(all, count, group->ranks.data(), &some);
  MPI_Comm_create_group(me.world, some, /*tag=*/0, &group->comm);
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  me.groups.push_back(std::move(group));
  return me.groups.back().get();
}

cleave_request *prepare(cleave_group *group, const cleave_collective *blocks,
                        int32_t count) {
  int members = static_cast<int>(group->ranks.size());
  std::string problem = checkCollective(blocks, count, members);
  if (problem.empty())
    problem = MpiTransfer::check(blocks, count, members);
  if (!problem.empty()) {
    group->owner->heartbeat.fail(problem);
    return nullptr;
  }
  if (group->owner->heartbeat.failed())
    return nullptr;
  // MPI guarantees tags up to 32767.
  int tag = group->made++ % 32768;
  group->prepared.add(blocks, count, members);
  return new cleave_request{
      group, MpiTransfer(blocks, count, group->comm, group->member, members,
                         tag, process->messageBytes, group->owner->team,
                         group->owner->staging)};
}

int start(cleave_request *request) {
  return request->group->owner->start(*request);
}

int wait(cleave_request *request) {
  cleave_group &group = *request->group;
  return group.owner->wait(*request, [&](std::vector<MPI_Request> &requests) {
    return group.complete(requests);
  });
}

/// After a failure MPI may still write to the memory of messages in flight.
void release(cleave_request *request) {
  if (!request->group->owner->heartbeat.failed())
    delete request;
}

/// Runs one exchange of bytes among all members; false after a failure.
bool gatherBytes(const cleave_group &group, const void *own, size_t size,
                 void *all) {
  struct Exchange {
    std::vector<MPI_Request> requests{MPI_REQUEST_NULL};
    std::vector<char> own, all;
  };
  auto exchange = std::make_unique<Exchange>();
  const char *begin = static_cast<const char *>(own);
  exchange->own.assign(begin, begin + size);
  exchange->all.resize(group.ranks.size() * size);
  MPI_Iallgather(exchange->own.data(), static_cast<int>(size), MPI_BYTE,
                 exchange->all.data(), static_cast<int>(size), MPI_BYTE,
                 group.comm, exchange->requests.data());
  if (!group.complete(exchange->requests)) {
    // MPI may still write to the memory.
    (void)exchange.release();
    return false;
  }
  std::memcpy(all, exchange->all.data(), exchange->all.size());
  return true;
}

/// Compares the collectives that the members have prepared since their last
/// barrier; false if they differ, or after another failure.
bool comparePrepared(cleave_group &group) {
  PreparedRequests::Outcome outcome = group.prepared.compare(
      group.ranks, [&](const void *own, size_t size, void *all) {
        return gatherBytes(group, own, size, all);
      });
  if (!outcome.compared || outcome.member == 0)
    return outcome.compared;
  Heartbeat &heartbeat = group.owner->heartbeat;
  if (group.member == static_cast<int>(outcome.member))
    heartbeat.fail(outcome.text);
  else
    heartbeat.blame(group.ranks[outcome.member], outcome.text);
  return false;
}

/// Waits for all members.
int meet(const cleave_group &group) {
  if (group.owner->heartbeat.failed())
    return 1;
  std::vector<MPI_Request> requests(1, MPI_REQUEST_NULL);
  MPI_Ibarrier(group.comm, requests.data());
  return group.complete(requests) ? 0 : 1;
}

int barrier(cleave_group *group) {
  if (group->owner->heartbeat.failed())
    return 1;
  return comparePrepared(*group) ? 0 : 1;
}

/// Without a failure, all ranks close together. After one, the resources of MPI
/// are not released.
void closeRank(cleave_communicator *c) {
  MpiCommunicator &me = self(c);
  cleave_group all;
  all.owner = &me;
  all.comm = me.world;
  me.heartbeat.setClosing(me.number);
  int failed = meet(all);
  me.heartbeat.setClosing(0);
  if (failed) {
    // Gives the others time to report why they end, before the launcher ends
    // them.
    ::usleep(500 * 1000);
    return;
  }
  for (const std::unique_ptr<cleave_group> &group : me.groups)
    MPI_Comm_free(&group->comm);
  MPI_Comm_free(&me.world);
  delete &me;
}

constexpr cleave_communicator_api mpiApi = {makeGroup,
                                            prepare,
                                            start,
                                            wait,
                                            release,
                                            barrier,
                                            MpiCommunicator::failWith,
                                            MpiCommunicator::errorOf,
                                            MpiCommunicator::setBusy,
                                            MpiCommunicator::isUnnoticed,
                                            MpiCommunicator::held,
                                            closeRank};

/// Ends MPI, together with all other processes; not after a failure, when it
/// would wait for the missing process. The launcher ends the rest.
void endProcess() {
  if (process->heartbeat.failed())
    return;
  MpiCommunicator me(process->heartbeat, {}, 1);
  // The group has no members to blame: ranks that wait here have left as well.
  cleave_group all;
  all.owner = &me;
  all.comm = MPI_COMM_WORLD;
  process->heartbeat.leave();
  if (meet(all) != 0)
    return;
  MPI_Finalize();
  delete process;
}

/// Exchanges addresses and begins to listen; returns the error, or "".
std::string startHeartbeat(Process &me) {
  // On one machine, datagrams need not leave it.
  MPI_Comm here;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL,
                      &here);
  MPI_Comm_size(here, &me.local);
  MPI_Comm_free(&here);
  int single = me.local == me.size, all = 0;
  MPI_Allreduce(&single, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);

  Address own;
  std::string problem = me.heartbeat.open(all != 0, own);
  // No process listens if one cannot.
  int ok = problem.empty(), everyone = 0;
  MPI_Allreduce(&ok, &everyone, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (!everyone)
    return problem.empty() ? "another rank cannot open a socket for heartbeats"
                           : problem;
  uint64_t key = std::random_device()();
  key = key << 32 | std::random_device()();
  MPI_Bcast(&key, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
  std::vector<Address> addresses(static_cast<size_t>(me.size));
  MPI_Allgather(&own, sizeof(own), MPI_BYTE, addresses.data(), sizeof(own),
                MPI_BYTE, MPI_COMM_WORLD);
  me.heartbeat.start(me.rank, key, std::move(addresses));
  if (int silent = me.heartbeat.waitUntilHeard(); silent >= 0)
    std::fprintf(stderr,
                 "warning: rank %d: no datagrams (UDP over IPv4) arrive from "
                 "rank %d: should that stop, this rank will wait for it\n",
                 me.rank, silent);
  MPI_Barrier(MPI_COMM_WORLD);
  return "";
}

/// Sets the size of pieces to that of the first rank; returns why it is
/// invalid, or "".
std::string agreeOnPieces(Process &me) {
  const char *text = std::getenv("CLEAVE_MPI_MESSAGE_BYTES");
  char *end = nullptr;
  long long bytes = text ? std::strtoll(text, &end, 10) : mostMessageBytes;
  if (bytes < 1 || bytes > mostMessageBytes || (text && (end == text || *end)))
    bytes = 0;
  me.messageBytes = bytes;
  MPI_Bcast(&me.messageBytes, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
  return me.messageBytes
             ? ""
             : "CLEAVE_MPI_MESSAGE_BYTES must be an integer from 1 to " +
                   std::to_string(mostMessageBytes);
}

std::string levelName(int level) {
  if (level == MPI_THREAD_SINGLE)
    return "MPI_THREAD_SINGLE";
  return std::to_string(level);
}

/// Starts MPI; returns the error, or "".
std::string startProcess() {
  int initialized = 0, provided = 0, finalized = 0;
  MPI_Finalized(&finalized);
  MPI_Initialized(&initialized);
  if (initialized || finalized)
    return "MPI was started or ended by something else in this process";
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) !=
      MPI_SUCCESS)
    return "MPI cannot be started";
  if (provided < MPI_THREAD_FUNNELED)
    return "this MPI library gives the thread level " + levelName(provided) +
           ", but MPI_THREAD_FUNNELED is needed: a rank has threads besides "
           "the one that calls MPI; use a library that was built with threads";
  auto me = std::make_unique<Process>();
  MPI_Comm_rank(MPI_COMM_WORLD, &me->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &me->size);
  std::string problem = agreeOnPieces(*me);
  if (problem.empty())
    problem = startHeartbeat(*me);
  if (problem.empty()) {
    process = me.release();
    std::atexit(endProcess);
  }
  return problem;
}

} // namespace

extern "C" __attribute__((visibility("default"))) cleave_communicator *
cleave_communicator_open(uint32_t abi, const cleave_team *team, char *error,
                         size_t errorSize) {
  auto fail = [&](const std::string &message) {
    std::snprintf(error, errorSize, "%s", message.c_str());
    return nullptr;
  };
  if (abi != CLEAVE_COMMUNICATOR_ABI)
    return fail("the MPI plugin has another version than this program: "
                "build them together");
  if (!process)
    if (std::string problem = startProcess(); !problem.empty())
      return fail(problem);
  if (process->heartbeat.failed())
    return fail(process->heartbeat.error());
  auto *me = new MpiCommunicator(process->heartbeat, *team, process->local);
  me->api = &mpiApi;
  me->rank = process->rank;
  me->size = process->size;
  me->number = ++process->opened;
  MPI_Comm_dup(MPI_COMM_WORLD, &me->world);
  return me;
}
