//===- DataMovement.h - Commands that move data -----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CPU_DATAMOVEMENT_H
#define CLEAVE_RUNTIME_CPU_DATAMOVEMENT_H

#include "cleave/Executable/Format/Program.h"
#include "cleave/Runtime/CPU/ThreadTeam.h"

namespace cleave::runtime {

/// out[ids[i], :] += rows[i, :]. Each thread owns columns or rows of `out` and
/// adds in the order of i, so that sums do not depend on the team. Ids out of
/// range are ignored: inputs are checked before a step.
void scatterAdd(const ScatterAddCommand &command, const float *rows,
                const void *ids, float *out, const ThreadTeam &team);

/// A copy with its dimensions merged and ordered for cache locality.
class StridedCopy {
public:
  explicit StridedCopy(const CopyCommand &command);
  void execute(const char *src, char *dst, const ThreadTeam &team) const;

private:
  struct Dim {
    int64_t size, src, dst;
  };

  int64_t elementBytes;
  /// Outer dimensions, and the two innermost.
  Dim dims[8];
  int rank = 0;
  bool empty = false;
};

void fill(const FillCommand &command, char *dst, const ThreadTeam &team);

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CPU_DATAMOVEMENT_H
