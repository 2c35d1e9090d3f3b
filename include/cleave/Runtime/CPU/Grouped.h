//===- Grouped.h - Products of rows sorted by group -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CPU_GROUPED_H
#define CLEAVE_RUNTIME_CPU_GROUPED_H

#include "cleave/Executable/Format/Program.h"
#include "cleave/Runtime/CPU/ThreadTeam.h"

namespace cleave::runtime {

/// Where the operands and results of a sort of rows are; `origin` may be null.
struct SortRowsPointers {
  const void *groups;
  const int64_t *origin;
  int64_t *order, *inverse, *offsets;
};

/// The order of rows by group, by counting.
void sortRows(const SortRowsCommand &command, const SortRowsPointers &p);

/// Where the operands and the result of a matmul of sorted rows are.
struct GroupedPointers {
  const char *a, *b;
  const int64_t *offsets;
  char *out;
  int64_t *scratch;
};

/// Products of sorted rows. Threads take tiles of groups one by one, so that
/// uneven groups do not leave them idle; the tiles, and with them the result,
/// do not depend on the team.
void groupedContract(const GroupedContractCommand &command,
                     const GroupedPointers &pointers, const ThreadTeam &team);

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CPU_GROUPED_H
