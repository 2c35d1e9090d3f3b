//===- DelayWaits.cpp - What runs while something is exchanged ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// An exchange is waited for when something needs its memory, not before. That
/// is decided by where buffers lie: one that takes the place of another in the
/// arena, in any action of the part, needs its memory.
///
//===----------------------------------------------------------------------===//

#include "cleave/Target/DelayWaits.h"
#include "cleave/Runtime/ProgramFields.h"
#include <set>

using namespace cleave;
using namespace cleave::runtime;

namespace {
/// The buffers that a structure refers to.
struct BufferCollector {
  std::set<int32_t> buffers;

  void collect(const Ref &ref) {
    if (ref.buffer >= 0)
      buffers.insert(ref.buffer);
  }
  template <typename T> void collect(const std::vector<T> &list) {
    for (const T &element : list)
      collect(element);
  }
  template <typename T> void collect(const T &value) {
    if constexpr (requires(Fields<T> &f) { fields(f, &value); }) {
      Fields<T> walk{*this, value};
      fields(walk, &value);
    }
  }

private:
  template <typename T> struct Fields {
    BufferCollector &collector;
    const T &object;

    template <typename Member> void operator()(const char *, Member member) {
      collector.collect(object.*member);
    }
  };
};

/// The waits of one part.
class PartWaits {
public:
  PartWaits(const Part &part, std::vector<const Action *> actions)
      : part(part), actions(std::move(actions)) {}

  std::vector<Command> run() {
    for (const Command &command : part.commands) {
      std::set<int32_t> buffers = buffersOf(command);
      if (command.kind == CommandKind::Wait) {
        Open &open = *std::find_if(exchanges.begin(), exchanges.end(),
                                   [&](const Open &other) {
                                     return other.token == command.wait.token;
                                   });
        open.wait = &command;
        continue;
      }
      finish([&](const Open &open) { return meet(open.buffers, buffers); });
      if (command.kind == CommandKind::Collective)
        exchanges.push_back({command.collective.token, std::move(buffers)});
      result.push_back(command);
    }
    finish([](const Open &) { return true; });
    return std::move(result);
  }

private:
  /// An exchange that was begun; its wait, once the program has come to it.
  struct Open {
    int32_t token;
    std::set<int32_t> buffers;
    const Command *wait = nullptr;
  };

  static std::set<int32_t> buffersOf(const Command &command) {
    BufferCollector collector;
    collector.collect(command);
    return std::move(collector.buffers);
  }

  /// Waits, in the order of their beginnings, for what `isNeeded`.
  template <typename F> void finish(const F &isNeeded) {
    std::erase_if(exchanges, [&](const Open &open) {
      if (!open.wait || !isNeeded(open))
        return false;
      result.push_back(*open.wait);
      return true;
    });
  }

  bool meet(const std::set<int32_t> &a, const std::set<int32_t> &b) const {
    for (int32_t one : a)
      for (int32_t other : b)
        if (one == other || overlap(one, other))
          return true;
    return false;
  }

  bool overlap(int32_t one, int32_t other) const {
    return llvm::any_of(actions, [&](const Action *action) {
      int64_t a = action->offsets[one], b = action->offsets[other];
      return a < b + part.buffers[other].bytes &&
             b < a + part.buffers[one].bytes;
    });
  }

  const Part &part;
  std::vector<const Action *> actions;
  std::vector<Open> exchanges;
  std::vector<Command> result;
};
} // namespace

void cleave::delayWaits(Program &program) {
  std::vector<std::vector<const Action *>> actions(program.parts.size());
  for (const auto &[name, entry] : program.entries)
    for (const Action &action : entry.actions)
      actions[action.part].push_back(&action);
  for (size_t i = 0; i < program.parts.size(); ++i)
    program.parts[i].commands =
        PartWaits(program.parts[i], std::move(actions[i])).run();
}
