//===- DelayWaits.cpp - Overlap of exchanges with commands ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// An exchange, or a copy between memory and the second tier, is awaited when a
/// command needs its memory, not before. That depends on the offsets of
/// buffers: a buffer that overlaps it in the arena, in any action of the part,
/// needs its memory. One part of a buffer can be exchanged while a product
/// reads or writes another one.
///
/// What a part that runs once leaves under way can go on behind it, while the
/// parts of micro-batches run.
///
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Transforms/DelayWaits.h"
#include "cleave/Executable/Format/BufferUse.h"
#include "llvm/ADT/STLExtras.h"
#include <algorithm>
#include <map>
#include <set>

using namespace cleave;
using namespace cleave::runtime;

namespace {
/// The waits of one part.
class PartWaits {
public:
  PartWaits(const Part &part, std::vector<PartRuns> runs)
      : part(part), memory(part, std::move(runs)) {}

  std::vector<Command> run() {
    for (const Command &command : part.commands) {
      std::vector<BufferRange> buffers = rangesOf(part, command);
      if (command.kind == CommandKind::Wait && !command.wait.transfer) {
        Open &open = *std::find_if(exchanges.begin(), exchanges.end(),
                                   [&](const Open &other) {
                                     return other.token == command.wait.token;
                                   });
        open.wait = &command;
        continue;
      }
      finish(
          [&](const Open &open) { return memory.meet(open.buffers, buffers); });
      if (command.isMove())
        exchanges.push_back({command.move.token, std::move(buffers)});
      else if (command.kind == CommandKind::Collective &&
               !command.collective.isTransfer())
        exchanges.push_back({command.collective.token, std::move(buffers)});
      result.push_back(command);
    }
    finish([](const Open &) { return true; });
    return std::move(result);
  }

private:
  /// An exchange or a move in flight; and its wait, once the program has
  /// reached it.
  struct Open {
    int32_t token;
    std::vector<BufferRange> buffers;
    const Command *wait = nullptr;
  };

  /// Waits, in the order in which the exchanges began, for those that
  /// `isNeeded`.
  template <typename F> void finish(const F &isNeeded) {
    std::erase_if(exchanges, [&](const Open &open) {
      if (!open.wait || !isNeeded(open))
        return false;
      result.push_back(*open.wait);
      return true;
    });
  }

  const Part &part;
  SharedMemory memory;
  std::vector<Open> exchanges;
  std::vector<Command> result;
};
} // namespace

void cleave::delayWaits(Program &program) {
  std::vector<std::vector<PartRuns>> runs = runsOfParts(program);
  for (size_t i = 0; i < program.parts.size(); ++i)
    program.parts[i].commands =
        PartWaits(program.parts[i], std::move(runs[i])).run();
}

//===----------------------------------------------------------------------===//
// Over parts
//===----------------------------------------------------------------------===//

namespace {
/// Bytes of the arena.
struct ArenaRange {
  int64_t begin, end;
};

/// The waits of one entry.
class EntryWaits {
public:
  EntryWaits(Program &program, const Entry &entry,
             const std::vector<int64_t> &runsInAll)
      : program(program), entry(entry), runs(program.parts.size(), 0),
        runsInAll(runsInAll), rows(program.parts.size(), nullptr) {
    for (const Rows &own : entry.rows)
      rows[static_cast<size_t>(own.part)] = &own;
    for (const Action &action : entry.actions) {
      numbers.push_back(runs[static_cast<size_t>(action.part)]++);
      for (const Command &command : partOf(action).commands)
        if (command.kind == CommandKind::Collective)
          nextToken = std::max(nextToken, command.collective.token + 1);
    }
  }

  void run() {
    for (size_t i = 0; i < entry.actions.size(); ++i) {
      if (!isOpen(entry.actions[i]))
        continue;
      std::vector<Command> &commands = partOf(entry.actions[i]).commands;
      size_t at = commands.size();
      while (at > 0 && commands[at - 1].kind == CommandKind::Wait)
        --at;
      // One that is moved leaves its place to the next one.
      while (at < commands.size())
        if (commands[at].wait.transfer || !move(i, at))
          ++at;
    }
  }

private:
  Part &partOf(const Action &action) {
    return program.parts[static_cast<size_t>(action.part)];
  }

  /// Whether what the action runs is run once, and always.
  bool isOpen(const Action &action) {
    const Part &part = partOf(action);
    return runsInAll[static_cast<size_t>(action.part)] == 1 &&
           part.unless.buffer < 0 && !part.whenStopped;
  }

  /// The flag that skips a part.
  static std::vector<BufferRange> flagOf(const Part &part) {
    return {{part.unless.buffer, part.unless.offset, part.unless.offset + 1}};
  }

  /// Memory of the part of action `index`, in its run there.
  std::vector<ArenaRange> memoryOf(size_t index,
                                   const std::vector<BufferRange> &ranges) {
    const Action &action = entry.actions[index];
    const Part &part = partOf(action);
    auto own = static_cast<size_t>(action.part);
    std::vector<ArenaRange> result;
    for (const BufferRange &range : ranges) {
      auto buffer = static_cast<size_t>(range.buffer);
      if (part.buffers[buffer].tier)
        continue;
      int64_t offset = rows[own]->columns[buffer].at(numbers[index], runs[own]);
      result.push_back({offset + range.begin, offset + range.end});
    }
    return result;
  }

  static bool overlap(const std::vector<ArenaRange> &a,
                      const std::vector<ArenaRange> &b) {
    return llvm::any_of(a, [&](const ArenaRange &one) {
      return llvm::any_of(b, [&](const ArenaRange &other) {
        return one.begin < other.end && other.begin < one.end;
      });
    });
  }

  bool meets(const std::vector<ArenaRange> &used, size_t index,
             const std::vector<BufferRange> &ranges) {
    return overlap(used, memoryOf(index, ranges));
  }

  /// The memory of a part in all of its runs, as disjoint ranges.
  const std::vector<ArenaRange> &memoryOfAllRuns(int32_t part) {
    auto [it, isNew] = known.try_emplace(part);
    std::vector<ArenaRange> &result = it->second;
    if (!isNew)
      return result;
    const Part &own = program.parts[static_cast<size_t>(part)];
    std::map<int64_t, int64_t> ends;
    int64_t count = runs[static_cast<size_t>(part)];
    std::set<int32_t> buffers;
    for (const Command &command : own.commands)
      buffers.merge(buffersOf(command));
    for (int32_t buffer : buffers) {
      auto i = static_cast<size_t>(buffer);
      for (int64_t run = 0; run < count && !own.buffers[i].tier; ++run) {
        int64_t at = rows[static_cast<size_t>(part)]->columns[i].at(run, count);
        ends[at] = std::max(ends[at], at + own.buffers[i].bytes);
      }
    }
    for (auto [begin, end] : ends) {
      if (result.empty() || result.back().end < begin)
        result.push_back({begin, end});
      else
        result.back().end = std::max(result.back().end, end);
    }
    return result;
  }

  /// Moves the wait at `at` of the part of action `first`, if it can.
  bool move(size_t first, size_t at) {
    Part &from = partOf(entry.actions[first]);
    auto begun = std::find_if(
        from.commands.begin(), from.commands.end(), [&](const Command &other) {
          return other.kind == CommandKind::Collective &&
                 !other.collective.endsLater() &&
                 other.collective.token == from.commands[at].wait.token;
        });
    // A move between memory and the second tier.
    if (begun == from.commands.end())
      return false;
    std::vector<ArenaRange> used = memoryOf(first, rangesOf(from, *begun));
    Part *to = nullptr;
    size_t place = 0;
    for (size_t i = first + 1; i < entry.actions.size(); ++i) {
      Part &part = partOf(entry.actions[i]);
      if (part.unless.buffer >= 0 && meets(used, i, flagOf(part)))
        break;
      if (runs[static_cast<size_t>(entry.actions[i].part)] > 1) {
        if (overlap(used, memoryOfAllRuns(entry.actions[i].part)))
          break;
        continue;
      }
      size_t k = 0;
      while (k < part.commands.size() &&
             !meets(used, i, rangesOf(part, part.commands[k])))
        ++k;
      if (isOpen(entry.actions[i]) &&
          entry.actions[i].microBatch == entry.actions[first].microBatch) {
        to = &part;
        place = k;
      }
      if (k < part.commands.size())
        break;
    }
    if (!to)
      return false;
    Command wait = from.commands[at];
    int32_t token = nextToken++;
    begun->collective.spans = true;
    begun->collective.token = wait.wait.token = token;
    wait.wait.transfer = true;
    from.commands.erase(from.commands.begin() + static_cast<ptrdiff_t>(at));
    to->commands.insert(to->commands.begin() + static_cast<ptrdiff_t>(place),
                        std::move(wait));
    return true;
  }

  Program &program;
  const Entry &entry;
  /// The runs of each part in this entry, and in all.
  std::vector<int64_t> runs;
  const std::vector<int64_t> &runsInAll;
  std::vector<const Rows *> rows;
  /// Of each action, the number of its run among those of its part.
  std::vector<int64_t> numbers;
  int32_t nextToken = 0;
  std::map<int32_t, std::vector<ArenaRange>> known;
};
} // namespace

void cleave::delayWaitsOverParts(Program &program) {
  std::vector<int64_t> runs(program.parts.size(), 0);
  for (const auto &[name, entry] : program.entries)
    for (const Action &action : entry.actions)
      ++runs[static_cast<size_t>(action.part)];
  for (const auto &[name, entry] : program.entries)
    EntryWaits(program, entry, runs).run();
}
