//===- ThreadWorld.cpp - Ranks that are threads ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// A request is a rendezvous of the members of a group, in any number of rounds.
// It has two counters: members that have arrived, and members that have
// finished their share. Both only grow, so that nothing is ever reset: round k
// is complete at k times the number of members.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Communicator/ThreadWorld.h"
#include "Rendezvous.h"
#include "cleave/Runtime/Communicator/ReduceBlocks.h"
#include "cleave/Support/RowOffsets.h"

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

using namespace cleave::runtime;

namespace {

/// One block, as the first member gave it; the others must agree.
struct SharedBlock {
  cleave_collective what;
  std::vector<int64_t> srcOffsets, dstOffsets;
  /// The address of each member's block; written before that member arrives.
  std::vector<const char *> srcs;
  std::vector<char *> dsts;

  SharedBlock(const cleave_collective &whatIn, size_t members)
      : what(whatIn), srcs(members), dsts(members) {
    auto keep = [&](auto &list, const auto *given) {
      list.assign(members, 0);
      if (given)
        list.assign(given, given + members);
    };
    keep(srcOffsets, what.src_offsets);
    keep(dstOffsets, what.dst_offsets);
  }
};

/// The state of one request that the members of a group share.
struct Request {
  std::vector<SharedBlock> blocks;
  std::vector<int32_t> sources;
  /// What the first member gave, for comparison.
  std::string common;
  int64_t elements = 0;
  /// Of rows that are sent to all: each member's, written before it arrives.
  cleave::RowOffsets rows;
  Rendezvous rendezvous;
  /// Members that read and write the memory of others now.
  std::atomic<int> working{0};

  explicit Request(size_t members)
      : rows(static_cast<int>(members)), rendezvous(members) {}

  bool sendsRows() const {
    return blocks[0].what.kind == CLEAVE_ALL_TO_ALL_ROWS;
  }

  /// Whether the world has not failed: then the memory of all members stays
  /// until `endWork`.
  bool beginWork(const WorldState &world) {
    working.fetch_add(1);
    if (!world.failed())
      return true;
    endWork();
    return false;
  }
  void endWork() { working.fetch_sub(1); }
  /// After a failure no member begins to work; returns when none does.
  void awaitWork() const {
    while (working.load() != 0)
      std::this_thread::yield();
  }
};

/// The state that the members of a group share.
struct Group {
  std::vector<int32_t> ranks;
  std::vector<std::unique_ptr<Request>> requests;
  Rendezvous barrier;

  explicit Group(std::vector<int32_t> ranksIn)
      : ranks(std::move(ranksIn)), barrier(ranks.size()) {}
};

struct ThreadCommunicator;

} // namespace

struct ThreadWorld::Shared {
  Shared(int ranks, int cores) : state(ranks, cores) {}

  WorldState state;
  std::mutex mutex;
  /// The n-th group with given members, for each n.
  std::map<std::pair<std::vector<int32_t>, size_t>, std::unique_ptr<Group>>
      groups;
  std::vector<std::unique_ptr<ThreadCommunicator>> communicators;
};

/// One member's view of a group.
struct cleave_group {
  ThreadCommunicator *owner;
  Group *shared;
  int member;
  /// The number of requests so far: the index of the next one.
  size_t made = 0;
  uint32_t barriers = 0;

  int size() const { return static_cast<int>(shared->ranks.size()); }
};

/// One member's view of a request.
struct cleave_request {
  cleave_group *group;
  Request *shared;
  std::vector<Block> blocks;
  uint32_t times = 0;
  bool started = false;
};

namespace {

struct ThreadCommunicator : cleave_communicator {
  ThreadWorld::Shared *world;
  cleave_team team;
  std::vector<std::unique_ptr<cleave_group>> groups;
  std::map<std::vector<int32_t>, size_t> groupsMade;
  /// The result of `error`; stable once the world has failed.
  std::string errorText;
};

ThreadCommunicator &self(cleave_communicator *c) {
  return *static_cast<ThreadCommunicator *>(c);
}

//===----------------------------------------------------------------------===//
// Groups and requests
//===----------------------------------------------------------------------===//

void failWith(cleave_communicator *c, const char *message) {
  self(c).world->state.fail(c->rank, message);
}

cleave_group *makeGroup(cleave_communicator *c, const int32_t *ranks,
                        int32_t count) {
  ThreadCommunicator &me = self(c);
  std::vector<int32_t> list(ranks, ranks + std::max(count, 0));
  auto group = std::make_unique<cleave_group>();
  group->owner = &me;
  std::string problem =
      checkGroup(ranks, count, me.rank, me.size, group->member);
  if (!problem.empty()) {
    failWith(c, problem.c_str());
    return nullptr;
  }
  size_t number = me.groupsMade[list]++;
  {
    std::lock_guard<std::mutex> lock(me.world->mutex);
    std::unique_ptr<Group> &shared = me.world->groups[{list, number}];
    if (!shared)
      shared = std::make_unique<Group>(list);
    group->shared = shared.get();
  }
  me.groups.push_back(std::move(group));
  return me.groups.back().get();
}

/// Why `block` cannot be reduced in place, or "".
std::string inPlaceProblem(const cleave_collective &block) {
  if (block.src == block.dst && block.kind == CLEAVE_ALL_REDUCE)
    for (int i = 0; i < block.dims; ++i)
      if (block.src_strides[i] != block.dst_strides[i])
        return "a reduction in place needs the same strides twice";
  return "";
}

cleave_request *prepare(cleave_group *group, const cleave_collective *blocks,
                        int32_t count) {
  ThreadCommunicator &me = *group->owner;
  size_t members = group->shared->ranks.size();
  std::string problem = checkCollective(blocks, count, group->size());
  for (int i = 0; problem.empty() && i < count; ++i)
    problem = inPlaceProblem(blocks[i]);
  if (!problem.empty()) {
    failWith(&me, problem.c_str());
    return nullptr;
  }
  auto request = std::make_unique<cleave_request>();
  request->group = group;
  for (int i = 0; i < count; ++i)
    request->blocks.emplace_back(blocks[i].dims, blocks[i].sizes,
                                 blocks[i].src_strides, blocks[i].dst_strides);
  std::lock_guard<std::mutex> lock(me.world->mutex);
  auto &requests = group->shared->requests;
  size_t number = group->made++;
  if (number == requests.size())
    requests.push_back(std::make_unique<Request>(members));
  Request &shared = *requests[number];
  if (shared.blocks.empty()) {
    for (int i = 0; i < count; ++i)
      shared.blocks.emplace_back(blocks[i], members);
    if (const int32_t *sources = blocks[0].sources)
      shared.sources.assign(sources, sources + members);
    shared.elements = countElements(blocks, count);
    shared.common = commonOf(blocks, count, group->size());
  } else if (shared.common != commonOf(blocks, count, group->size())) {
    const cleave_collective &first = shared.blocks[0].what;
    auto text = [](const cleave_collective &what, int64_t elements) {
      return describe(what.kind, what.dtype, elements);
    };
    failWith(&me, ("asks for another collective than the other ranks: " +
                   text(blocks[0], countElements(blocks, count)) + ", not " +
                   text(first, shared.elements))
                      .c_str());
    return nullptr;
  }
  shared.rows.set(group->member, blocks[0].send_offsets,
                  blocks[0].receive_offsets);
  for (int i = 0; i < count; ++i) {
    SharedBlock &block = shared.blocks[static_cast<size_t>(i)];
    block.srcs[static_cast<size_t>(group->member)] =
        static_cast<const char *>(blocks[i].src);
    block.dsts[static_cast<size_t>(group->member)] =
        static_cast<char *>(blocks[i].dst);
    if (blocks[i].kind == CLEAVE_SEND && group->member == 0)
      std::copy_n(blocks[i].src_strides, blocks[i].dims,
                  block.what.src_strides);
    if (blocks[i].kind == CLEAVE_SEND && group->member == 1)
      std::copy_n(blocks[i].dst_strides, blocks[i].dims,
                  block.what.dst_strides);
  }
  request->shared = &shared;
  return request.release();
}

//===----------------------------------------------------------------------===//
// Runs
//===----------------------------------------------------------------------===//

bool isSender(const cleave_request &request) {
  return request.shared->blocks[0].what.kind == CLEAVE_SEND &&
         request.group->member == 0;
}

int start(cleave_request *request) {
  if (request->started) {
    failWith(request->group->owner, "starts a collective that is in flight");
    return 1;
  }
  if (request->group->owner->world->state.failed())
    return 1;
  request->started = true;
  size_t member = static_cast<size_t>(request->group->member);
  Rendezvous &rendezvous = request->shared->rendezvous;
  rendezvous.arrive(member, ++request->times);
  // A sender has finished, and is not waited for.
  if (isSender(*request))
    rendezvous.finish(member, request->times);
  return 0;
}

/// This member's share of the work on a block; reads and writes the memory of
/// other members.
void work(const cleave_group &group, const Block &block,
          const SharedBlock &shared, const std::vector<int32_t> &sources) {
  const cleave_collective &what = shared.what;
  const cleave_team &team = group.owner->team;
  size_t members = shared.srcs.size();
  size_t me = static_cast<size_t>(group.member);
  int64_t bytes = elementBytes(what.dtype);

  // Copies the block of `from` that begins at `srcOffset` elements.
  auto take = [&](size_t from, int64_t srcOffset, int64_t dstOffset) {
    const char *src = shared.srcs[from] + srcOffset * bytes;
    char *dst = shared.dsts[me] + dstOffset * bytes;
    splitAmong(team, 0, block.elements, [&](int64_t begin, int64_t end) {
      copyBlock(block, bytes, src, dst, begin, end);
    });
  };

  // Combines blocks in place: their addresses fit on the stack for any usual
  // group.
  constexpr size_t usual = 64;
  const void *fixedSrcs[usual];
  void *fixedDsts[usual];
  std::vector<const void *> manySrcs(members > usual ? members : 0);
  std::vector<void *> manyDsts(members > usual ? members : 0);
  const void **srcs = members > usual ? manySrcs.data() : fixedSrcs;
  void **dsts = members > usual ? manyDsts.data() : fixedDsts;

  switch (what.kind) {
  case CLEAVE_ALL_REDUCE: {
    for (size_t i = 0; i < members; ++i) {
      srcs[i] = shared.srcs[i];
      dsts[i] = shared.dsts[i];
    }
    int64_t n = block.elements, count = static_cast<int64_t>(members);
    splitAmong(team, shareBegin(n, group.member, count),
               shareBegin(n, group.member + 1, count),
               [&](int64_t begin, int64_t end) {
                 reduceBlocks(block, what.dtype, what.reduction, srcs,
                              group.size(), dsts, group.size(), begin, end);
               });
    return;
  }
  case CLEAVE_REDUCE:
    if (me != static_cast<size_t>(what.root))
      return;
    [[fallthrough]];
  case CLEAVE_REDUCE_SCATTER: {
    for (size_t i = 0; i < members; ++i)
      srcs[i] = shared.srcs[i] + shared.srcOffsets[me] * bytes;
    dsts[0] = shared.dsts[me];
    splitAmong(team, 0, block.elements, [&](int64_t begin, int64_t end) {
      reduceBlocks(block, what.dtype, what.reduction, srcs, group.size(), dsts,
                   1, begin, end);
    });
    return;
  }
  case CLEAVE_ALL_GATHER:
  case CLEAVE_ALL_TO_ALL: {
    int64_t srcOffset =
        what.kind == CLEAVE_ALL_TO_ALL ? shared.srcOffsets[me] : 0;
    // Each member begins with another one, so that not all read the same
    // memory.
    for (size_t i = 0; i < members; ++i) {
      size_t from = (me + i) % members;
      take(from, srcOffset, shared.dstOffsets[from]);
    }
    return;
  }
  case CLEAVE_PERMUTE:
    return take(static_cast<size_t>(sources[me]), 0, 0);
  case CLEAVE_BROADCAST:
    return take(static_cast<size_t>(what.root), 0, 0);
  case CLEAVE_SEND:
    // The first member's strides were not known when this request was created.
    Block both(what.dims, what.sizes, what.src_strides, what.dst_strides);
    splitAmong(team, 0, both.elements, [&](int64_t begin, int64_t end) {
      copyBlock(both, bytes, shared.srcs[0], shared.dsts[1], begin, end);
    });
  }
}

/// Takes the rows of all members that are for this one.
void takeRows(const cleave_group &group, const SharedBlock &shared,
              const cleave::RowOffsets &rows) {
  const cleave_collective &what = shared.what;
  const cleave_team &team = group.owner->team;
  int64_t elements = 1, bytes = elementBytes(what.dtype);
  for (int i = 1; i < what.dims; ++i)
    elements *= what.sizes[i];
  char *to = shared.dsts[static_cast<size_t>(group.member)];
  auto place = [&](auto *memory, int64_t row, int64_t element) {
    return memory + (row * elements + element) * bytes;
  };
  for (int i = 0; i < group.size(); ++i) {
    int from = (group.member + i) % group.size();
    const char *src = shared.srcs[static_cast<size_t>(from)];
    int64_t first = rows.sendBegin(from, group.member),
            at = rows.receiveBegin(group.member, from);
    splitAmong(team, 0, rows.rows(from, group.member) * elements,
               [&](int64_t begin, int64_t end) {
                 std::memcpy(place(to, at, begin), place(src, first, begin),
                             static_cast<size_t>((end - begin) * bytes));
               });
  }
  int64_t received = rows.received(group.member);
  splitAmong(team, 0, (what.bound - received) * elements,
             [&](int64_t begin, int64_t end) {
               std::memset(place(to, received, begin), 0,
                           static_cast<size_t>((end - begin) * bytes));
             });
}

int wait(cleave_request *request) {
  cleave_group &group = *request->group;
  ThreadCommunicator &me = *group.owner;
  Rendezvous &rendezvous = request->shared->rendezvous;
  if (!request->started) {
    failWith(&me, "waits for a collective that it has not started");
    return 1;
  }
  request->started = false;
  size_t member = static_cast<size_t>(group.member);
  Request &shared = *request->shared;
  WorldState &world = me.world->state;
  auto run = [&] {
    if (!rendezvous.allArrived(request->times, group.shared->ranks, world))
      return false;
    if (!isSender(*request)) {
      if (!shared.beginWork(world))
        return false;
      // All members find the same.
      std::string problem;
      if (const cleave_collective &what = shared.blocks[0].what;
          shared.sendsRows())
        problem = shared.rows.problem(what.sizes[0], what.bound);
      for (size_t i = 0; problem.empty() && i < shared.blocks.size(); ++i)
        if (shared.sendsRows())
          takeRows(group, shared.blocks[i], shared.rows);
        else
          work(group, request->blocks[i], shared.blocks[i], shared.sources);
      shared.endWork();
      if (!problem.empty()) {
        failWith(&me, ("an all-to-all of rows: " + problem).c_str());
        return false;
      }
      rendezvous.finish(member, request->times);
    }
    return rendezvous.allFinished(request->times, group.shared->ranks, world);
  };
  if (run())
    return 0;
  shared.awaitWork();
  return 1;
}

void release(cleave_request *request) {
  if (request->started) {
    // The others must not use the memory of this member any more.
    failWith(request->group->owner, "has ended during a collective");
    request->shared->awaitWork();
  }
  delete request;
}

int barrier(cleave_group *group) {
  WorldState &state = group->owner->world->state;
  Rendezvous &rendezvous = group->shared->barrier;
  if (state.failed())
    return 1;
  rendezvous.arrive(static_cast<size_t>(group->member), ++group->barriers);
  return rendezvous.allArrived(group->barriers, group->shared->ranks, state)
             ? 0
             : 1;
}

const char *errorOf(cleave_communicator *c) {
  ThreadCommunicator &me = self(c);
  me.errorText = me.world->state.error();
  return me.errorText.c_str();
}

/// Ranks read each other's memory.
int64_t held(cleave_communicator *) { return 0; }

void closeRank(cleave_communicator *c) { self(c).world->state.leave(c->rank); }

/// Ranks that are threads run one program, and nothing else.
void setBusy(cleave_communicator *, int32_t) {}
int isUnnoticed(cleave_communicator *, int32_t) { return 0; }

constexpr cleave_communicator_api threadApi = {
    makeGroup, prepare, start,   wait,        release, barrier,
    failWith,  errorOf, setBusy, isUnnoticed, held,    closeRank};

} // namespace

ThreadWorld::ThreadWorld(int ranks, int cores)
    : shared(std::make_unique<Shared>(ranks, cores)) {}

ThreadWorld::~ThreadWorld() = default;

int ThreadWorld::size() const { return shared->state.size(); }

cleave_communicator *ThreadWorld::connect(int rank, const cleave_team &team) {
  auto communicator = std::make_unique<ThreadCommunicator>();
  communicator->api = &threadApi;
  communicator->rank = rank;
  communicator->size = size();
  communicator->world = shared.get();
  communicator->team = team;
  std::lock_guard<std::mutex> lock(shared->mutex);
  shared->state.addThreads(team.threads);
  shared->communicators.push_back(std::move(communicator));
  return shared->communicators.back().get();
}
