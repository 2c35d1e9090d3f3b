//===- DeferChecks.cpp - Checks that take effect later --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Transforms/DeferChecks.h"
#include "cleave/Executable/Format/BufferUse.h"
#include "cleave/Executable/Format/Rows.h"
#include "cleave/Executable/Format/ShardLayout.h"

using namespace cleave;
using namespace cleave::runtime;

namespace {
/// The memory of a program that outlives a step: its beginnings in the arena,
/// each with its end.
class KeptMemory {
public:
  explicit KeptMemory(const Program &program) {
    for (const Tensor &tensor : program.tensors)
      if (int64_t bytes = localBytes(program.mesh, tensor);
          tensor.role != Role::Output && !tensor.tier && bytes > 0) {
        int64_t &end = ends[tensor.offset];
        end = std::max(end, tensor.offset + bytes);
      }
  }

  bool isWritten(const Part &part, llvm::ArrayRef<int64_t> row,
                 const Command &command) const {
    for (int32_t index : writtenBuffersOf(command)) {
      const Buffer &buffer = part.buffers[static_cast<size_t>(index)];
      int64_t begin = row[static_cast<size_t>(index)];
      if (buffer.tier)
        return true;
      auto next = ends.lower_bound(begin + buffer.bytes);
      if (next != ends.begin() && std::prev(next)->second > begin)
        return true;
    }
    return false;
  }

private:
  std::map<int64_t, int64_t> ends;
};
} // namespace

void cleave::deferChecks(Program &program) {
  KeptMemory kept(program);
  std::set<Command *> seen, needed;
  for (auto &[name, entry] : program.entries) {
    // Those since something was written that is kept, or the first.
    std::vector<Command *> since;
    RowReader rows(entry, program.parts.size());
    for (const Action &action : entry.actions) {
      Part &part = program.parts[static_cast<size_t>(action.part)];
      llvm::ArrayRef<int64_t> row = rows.next(action);
      // Only after a check.
      if (part.whenStopped)
        continue;
      for (Command &command : part.commands) {
        if (command.kind == CommandKind::Check && !command.check.deferred) {
          seen.insert(&command);
          since.push_back(&command);
        } else if (!since.empty() && kept.isWritten(part, row, command)) {
          needed.insert(since.back());
          since.clear();
        }
      }
    }
    if (!since.empty())
      needed.insert(since.back());
  }
  for (Command *check : seen)
    check->check.deferred = !needed.count(check);
}
