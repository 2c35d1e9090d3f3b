//===- Rows.h - Buffer offsets of actions -----------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_FORMAT_ROWS_H
#define CLEAVE_EXECUTABLE_FORMAT_ROWS_H

#include "cleave/Executable/Format/Program.h"
#include "llvm/ADT/ArrayRef.h"

namespace cleave::runtime {

/// Reads the rows of an entry, one for each action, in order. The entry must
/// outlive it; each part of an action must be one of `parts` and have rows.
class RowReader {
public:
  RowReader(const Entry &entry, size_t parts);

  /// The arena offset, in bytes, of each buffer of the part of the next action,
  /// `action`; valid until the next call.
  llvm::ArrayRef<int64_t> next(const Action &action);

private:
  struct Runs {
    const Rows *rows = nullptr;
    int64_t done = 0, count = 0;
  };
  std::vector<Runs> runs;
  std::vector<int64_t> row;
};

/// Calls `visit(command, row)` with each command in the order in which the
/// entries of `program` run it, and the row of its action.
template <typename F>
void forEachCommand(const Program &program, const F &visit) {
  for (const auto &[name, entry] : program.entries) {
    RowReader rows(entry, program.parts.size());
    for (const Action &action : entry.actions) {
      llvm::ArrayRef<int64_t> row = rows.next(action);
      for (const Command &command :
           program.parts[static_cast<size_t>(action.part)].commands)
        visit(command, row);
    }
  }
}

/// An action, and the offset of each buffer of its part.
struct PlacedAction {
  Action action;
  std::vector<int64_t> offsets;
};

/// Sets the actions of `entry` to `actions`. All of one part have the same
/// number of offsets.
void setActions(Entry &entry, llvm::ArrayRef<PlacedAction> actions);

/// The rows of a part, whose run i has the offsets `runs[i]`.
Rows rowsOf(int32_t part, llvm::ArrayRef<llvm::ArrayRef<int64_t>> runs);

} // namespace cleave::runtime

#endif // CLEAVE_EXECUTABLE_FORMAT_ROWS_H
