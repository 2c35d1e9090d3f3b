//===- CollectiveOrder.cpp - Whether ranks wait for each other forever
//------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Runs what the ranks exchange, without doing it: a start is on a stream, a
/// wait ends when all members of the exchange have come to its start, and an
/// agreement on a check is an exchange of all ranks that each waits for at
/// once.
///
/// The ranks of a pipeline position have one table, so that they come to the
/// same place: where each group has a stream of its own, one rank stands for
/// them.
///
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Format/CollectiveOrder.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Executable/Format/ShardLayout.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"
#include <deque>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

using namespace cleave::runtime;

namespace {

/// Members of a collective, or what names a stream: one list for equal ones.
using Ranks = std::vector<int32_t>;
using KnownRanks = std::set<Ranks>;

struct BeforeRanks {
  bool operator()(const Ranks *a, const Ranks *b) const { return *a < *b; }
};

/// What a rank does with its exchanges, in the order of its table.
struct Event {
  /// The start that a wait ends; of a start, its own index.
  size_t start = 0;
  bool ends = false;
  const Command *command = nullptr;
  const Part *part = nullptr;
  const Ranks *group = nullptr;
  /// Exchanges of a stream are done in its order.
  const Ranks *stream = nullptr;
};

/// The exchanges of one rank on its streams.
struct Simulated {
  std::vector<Event> events;
  size_t next = 0;
  std::vector<bool> done;
  /// Started and not done, by stream.
  llvm::DenseMap<const Ranks *, std::deque<size_t>> streams;
};

} // namespace

namespace {
/// The events of one rank.
class Recorder {
public:
  Recorder(const Program &program, int64_t rank, CollectiveStreams streams,
           KnownRanks &known)
      : program(program), rank(rank), streams(streams), known(known) {}

  std::vector<Event> run(const Entry &entry) {
    for (const Action &action : entry.actions) {
      const Part &part = program.parts[static_cast<size_t>(action.part)];
      if (part.whenStopped)
        continue;
      for (const Command &command : part.commands)
        add(command, part, action.microBatch);
    }
    return std::move(events);
  }

private:
  void add(const Command &command, const Part &part, int32_t microBatch) {
    Event event;
    event.command = &command;
    event.part = &part;
    event.start = events.size();
    if (command.kind == CommandKind::Collective) {
      start(command.collective, event, microBatch);
    } else if (command.kind == CommandKind::Check) {
      if (command.check.deferred)
        return;
      if (!everyone) {
        Ranks group(static_cast<size_t>(deviceCount(program.mesh)));
        std::iota(group.begin(), group.end(), 0);
        meet(group);
        everyone = &*known.insert(std::move(group)).first;
      }
      event.group = everyone;
      event.stream = &*known.insert(Ranks{kAgreements}).first;
      events.push_back(event);
      event.ends = true;
    } else if (command.kind == CommandKind::Wait) {
      event.ends = true;
      if (command.wait.transfer) {
        auto it = transfers.find({command.wait.token, microBatch});
        if (it == transfers.end())
          return;
        event.start = it->second;
      } else {
        auto it = underWay.find(command.wait.token);
        if (it == underWay.end())
          return; // A move.
        event.start = it->second;
      }
    } else {
      if (command.isMove())
        underWay.erase(command.move.token);
      return;
    }
    events.push_back(std::move(event));
  }

  void start(const CollectiveCommand &c, Event &event, int32_t microBatch) {
    auto [it, fresh] = met.try_emplace(&c);
    if (fresh)
      it->second = meetingOf(c);
    std::tie(event.group, event.stream) = it->second;
    if (c.endsLater())
      transfers[{c.token, microBatch}] = event.start;
    else
      underWay[c.token] = event.start;
  }

  /// The members of a collective, and its stream.
  std::pair<const Ranks *, const Ranks *>
  meetingOf(const CollectiveCommand &c) const {
    Ranks group = groupOf(program.mesh, c.axes, rank), stream;
    if (c.isTransfer()) {
      int32_t other = group[static_cast<size_t>(c.root)];
      auto own = static_cast<int32_t>(rank);
      group = c.collective == CollectiveKind::Send ? Ranks{own, other}
                                                   : Ranks{other, own};
    }
    auto members = static_cast<int32_t>(group.size());
    meet(group);
    if (c.isTransfer() || streams == CollectiveStreams::OfGroups) {
      stream = group;
      stream.push_back(-members);
    }
    return {&*known.insert(std::move(group)).first,
            &*known.insert(std::move(stream)).first};
  }

  /// Members of one position meet in one of them.
  void meet(Ranks &group) const {
    if (streams == CollectiveStreams::One)
      return;
    Ranks positions;
    for (int32_t member : group)
      if (auto at = static_cast<int32_t>(positionOf(program, member));
          !llvm::is_contained(positions, at))
        positions.push_back(at);
    group = std::move(positions);
  }

  static constexpr int32_t kAgreements = -1;

  const Program &program;
  int64_t rank;
  CollectiveStreams streams;
  KnownRanks &known;
  const Ranks *everyone = nullptr;
  /// Each action of a part has the same exchanges.
  llvm::DenseMap<const CollectiveCommand *,
                 std::pair<const Ranks *, const Ranks *>>
      met;
  std::vector<Event> events;
  llvm::DenseMap<int32_t, size_t> underWay;
  llvm::DenseMap<std::pair<int32_t, int32_t>, size_t> transfers;
};
} // namespace

static std::string describe(const Event &event) {
  std::string what =
      event.command->kind == CommandKind::Check
          ? "agreement on a check"
          : collectiveName(event.command->collective.collective).str();
  std::string label =
      event.command->label.empty() ? "" : " (" + event.command->label + ")";
  return "the " + what + " of part '" + event.part->name + "'" + label;
}

namespace {
/// Runs the events of all ranks as far as they come. The order in which ranks
/// go on does not matter: each follows the order of its table, and what is
/// possible stays so until it is done.
class Simulator {
public:
  explicit Simulator(std::vector<Simulated> &ranks) : ranks(ranks) {}

  void run() {
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      awake.push_back(rank);
    while (!awake.empty()) {
      size_t rank = awake.back();
      awake.pop_back();
      goOn(rank);
    }
  }

  /// The event that a rank is at on a stream; null if there is none.
  static const Event *headOf(const Simulated &rank, const Ranks *stream) {
    auto it = rank.streams.find(stream);
    return it == rank.streams.end() || it->second.empty()
               ? nullptr
               : &rank.events[it->second.front()];
  }

private:
  /// Starts what a rank starts before it waits for what is not done.
  void goOn(size_t number) {
    Simulated &rank = ranks[number];
    while (rank.next < rank.events.size()) {
      const Event &event = rank.events[rank.next];
      if (event.ends && !rank.done[event.start])
        return;
      size_t own = rank.next++;
      if (event.ends)
        continue;
      std::deque<size_t> &stream = rank.streams[event.stream];
      stream.push_back(own);
      if (stream.size() == 1)
        complete(number, event.stream);
    }
  }

  /// Does what the rank is at on the stream while all members are at it.
  void complete(size_t number, const Ranks *stream) {
    std::vector<size_t> left{number};
    while (!left.empty()) {
      const Event *first = headOf(ranks[left.back()], stream);
      left.pop_back();
      if (!first || !llvm::all_of(*first->group, [&](int32_t member) {
            const Event *other =
                headOf(ranks[static_cast<size_t>(member)], stream);
            return other && other->group == first->group;
          }))
        continue;
      for (int32_t member : *first->group) {
        Simulated &other = ranks[static_cast<size_t>(member)];
        std::deque<size_t> &waiting = other.streams.find(stream)->second;
        other.done[waiting.front()] = true;
        waiting.pop_front();
        left.push_back(static_cast<size_t>(member));
        awake.push_back(static_cast<size_t>(member));
      }
    }
  }

  std::vector<Simulated> &ranks;
  /// Those that may go on.
  std::vector<size_t> awake;
};
} // namespace

static std::string simulate(std::vector<Simulated> &ranks,
                            const std::string &who) {
  Simulator(ranks).run();
  auto headOf = Simulator::headOf;
  // What the first rank waits for, and what another one waits for instead.
  for (auto [number, rank] : llvm::enumerate(ranks)) {
    std::map<const Ranks *, std::deque<size_t>, BeforeRanks> pending;
    for (auto &[stream, waiting] : rank.streams)
      if (!waiting.empty())
        pending[stream] = waiting;
    for (auto &[stream, waiting] : pending) {
      const Event &own = rank.events[waiting.front()];
      for (int32_t member : *own.group) {
        Simulated &other = ranks[static_cast<size_t>(member)];
        const Event *head = headOf(other, stream);
        if (head && head->group == own.group)
          continue;
        std::string text = who + " " + std::to_string(number) + " is at " +
                           describe(own) + ", and " + who + " " +
                           std::to_string(member) + " is at ";
        if (!head && other.next < other.events.size())
          head = &other.events[other.events[other.next].start];
        return text + (head ? describe(*head) : "its end");
      }
    }
    if (rank.next < rank.events.size())
      return who + " " + std::to_string(number) + " waits for " +
             describe(rank.events[rank.events[rank.next].start]);
  }
  return "";
}

std::string
cleave::runtime::findCollectiveDeadlock(const std::vector<Program> &programs,
                                        CollectiveStreams streams) {
  if (programs.empty())
    return "";
  const Program &any = programs.front();
  auto ranks = static_cast<size_t>(deviceCount(any.mesh));
  // The rank that stands for each of those that are simulated.
  std::vector<size_t> standing;
  for (size_t rank = 0; rank < ranks; ++rank)
    if (streams == CollectiveStreams::One ||
        static_cast<size_t>(positionOf(any, static_cast<int64_t>(rank))) ==
            standing.size())
      standing.push_back(rank);
  for (const auto &[name, entry] : any.entries) {
    std::vector<Simulated> simulated(standing.size());
    KnownRanks known;
    for (auto [rank, own] : llvm::zip_equal(standing, simulated)) {
      auto position =
          static_cast<size_t>(positionOf(any, static_cast<int64_t>(rank)));
      const Program &program = programs[programs.size() == 1 ? 0 : position];
      auto it = program.entries.find(name);
      if (it != program.entries.end())
        own.events =
            Recorder(program, static_cast<int64_t>(rank), streams, known)
                .run(it->second);
      own.done.resize(own.events.size());
    }
    std::string found = simulate(
        simulated, streams == CollectiveStreams::One ? "rank" : "position");
    if (!found.empty())
      return "entry '" + name +
             "' has collectives that wait for each other: " + found;
  }
  return "";
}
