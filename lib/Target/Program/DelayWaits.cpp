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
//===----------------------------------------------------------------------===//

#include "cleave/Target/Program/DelayWaits.h"
#include "cleave/Runtime/Core/BufferUse.h"

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
