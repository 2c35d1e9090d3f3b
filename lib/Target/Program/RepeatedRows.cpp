//===- RepeatedRows.cpp - Continuation of repeated rows -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "RepeatedRows.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Executable/Format/Rows.h"
#include "cleave/Target/Program/ProgramTable.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

bool cleave::isPeriodic(const runtime::Column &column, int64_t count,
                        int64_t more) {
  auto turn = static_cast<int64_t>(column.turn.size());
  int64_t regular =
      count - static_cast<int64_t>(column.first.size() + column.last.size());
  return more == 0 || (regular >= 2 * turn && regular >= 3 &&
                       (turn == 1 || column.last.empty() || more % turn == 0));
}

bool cleave::rowsRepeat(ModuleOp module) {
  for (auto program : module.getOps<ProgramOp>()) {
    if (!program.getRepeats())
      continue;
    llvm::StringMap<SmallVector<ArrayRef<int64_t>>> rows;
    llvm::StringMap<int64_t> counts;
    for (auto [run, times] : llvm::zip_equal(program.getBody().getOps<RunOp>(),
                                             program.countActions())) {
      if (!run.getOffsets())
        return true;
      rows[run.getCallee()].push_back(*run.getOffsets());
      counts[run.getCallee()] += times;
    }
    for (const auto &entry : rows) {
      auto count = static_cast<int64_t>(entry.second.size()),
           more = counts[entry.getKey()] - count;
      if (more == 0)
        continue;
      for (const runtime::Column &column :
           runtime::rowsOf(0, entry.second).columns)
        if (!isPeriodic(column, count, more))
          return false;
    }
  }
  return true;
}
