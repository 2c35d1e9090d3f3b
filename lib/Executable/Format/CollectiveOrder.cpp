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
#include "llvm/ADT/STLExtras.h"
#include <map>
#include <numeric>

using namespace cleave::runtime;

namespace {

/// What a rank does with its exchanges, in the order of its table.
struct Event {
  /// The start that a wait ends; of a start, its own index.
  size_t start = 0;
  bool ends = false;
  const Command *command = nullptr;
  const Part *part = nullptr;
  std::vector<int32_t> group;
  /// Exchanges of a stream are done in its order.
  std::vector<int32_t> stream;
};

/// The exchanges of one rank on its streams.
struct Simulated {
  std::vector<Event> events;
  size_t next = 0;
  std::vector<bool> done;
  /// Started and not done, by stream; none are empty.
  std::map<std::vector<int32_t>, std::vector<size_t>> streams;
};

} // namespace

namespace {
/// The events of one rank.
class Recorder {
public:
  Recorder(const Program &program, int64_t rank, CollectiveStreams streams)
      : program(program), rank(rank), streams(streams) {}

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
      event.group.resize(static_cast<size_t>(deviceCount(program.mesh)));
      std::iota(event.group.begin(), event.group.end(), 0);
      event.stream = {kAgreements};
      meet(event.group);
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
    event.group = groupOf(program.mesh, c.axes, rank);
    if (c.isTransfer()) {
      int32_t other = event.group[static_cast<size_t>(c.root)];
      auto own = static_cast<int32_t>(rank);
      event.group = c.collective == CollectiveKind::Send
                        ? std::vector{own, other}
                        : std::vector{other, own};
    }
    auto members = static_cast<int32_t>(event.group.size());
    meet(event.group);
    if (c.isTransfer() || streams == CollectiveStreams::OfGroups) {
      event.stream = event.group;
      event.stream.push_back(-members);
    }
    if (c.endsLater())
      transfers[{c.token, microBatch}] = event.start;
    else
      underWay[c.token] = event.start;
  }

  /// Members of one position meet in one of them.
  void meet(std::vector<int32_t> &group) const {
    if (streams == CollectiveStreams::One)
      return;
    std::vector<int32_t> positions;
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
  std::vector<Event> events;
  std::map<int32_t, size_t> underWay;
  std::map<std::pair<int32_t, int32_t>, size_t> transfers;
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

static std::string simulate(std::vector<Simulated> &ranks,
                            const std::string &who) {
  auto headOf = [](Simulated &rank,
                   const std::vector<int32_t> &stream) -> const Event * {
    auto it = rank.streams.find(stream);
    return it == rank.streams.end() ? nullptr
                                    : &rank.events[it->second.front()];
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (Simulated &rank : ranks) {
      while (rank.next < rank.events.size()) {
        const Event &event = rank.events[rank.next];
        if (event.ends && !rank.done[event.start])
          break;
        if (!event.ends)
          rank.streams[event.stream].push_back(rank.next);
        ++rank.next;
        moved = true;
      }
      for (auto it = rank.streams.begin(); it != rank.streams.end();) {
        // What is done may be the last of its stream.
        const std::vector<int32_t> &stream = it->first;
        const Event *first = &rank.events[it->second.front()];
        ++it;
        if (!llvm::all_of(first->group, [&](int32_t member) {
              const Event *other =
                  headOf(ranks[static_cast<size_t>(member)], stream);
              return other && other->group == first->group;
            }))
          continue;
        std::vector<int32_t> group = first->group, key = stream;
        for (int32_t member : group) {
          Simulated &other = ranks[static_cast<size_t>(member)];
          auto own = other.streams.find(key);
          other.done[own->second.front()] = true;
          own->second.erase(own->second.begin());
          if (own->second.empty())
            other.streams.erase(own);
        }
        moved = true;
      }
    }
  }
  // What the first rank waits for, and what another one waits for instead.
  for (auto [number, rank] : llvm::enumerate(ranks)) {
    for (auto &[stream, waiting] : rank.streams) {
      const Event &own = rank.events[waiting.front()];
      for (int32_t member : own.group) {
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
    for (auto [rank, own] : llvm::zip_equal(standing, simulated)) {
      auto position =
          static_cast<size_t>(positionOf(any, static_cast<int64_t>(rank)));
      const Program &program = programs[programs.size() == 1 ? 0 : position];
      auto it = program.entries.find(name);
      if (it != program.entries.end())
        own.events = Recorder(program, static_cast<int64_t>(rank), streams)
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
