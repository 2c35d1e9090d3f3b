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
#include "BufferUse.h"

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
      std::set<int32_t> buffers = buffersOf(command);
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
      if (command.kind == CommandKind::Collective &&
          !command.collective.isTransfer())
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

  /// Waits, in the order of their beginnings, for what `isNeeded`.
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
