//===- Movement.h - Commands that move data ---------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_MOVEMENT_H
#define CLEAVE_RUNTIME_MOVEMENT_H

#include "cleave/Runtime/Program.h"
#include "cleave/Runtime/ThreadTeam.h"

namespace cleave::runtime {

/// out[ids[i], :] += rows[i, :]. Each thread owns columns or rows of `out` and
/// goes through i in order, so that sums do not depend on the team. Ids
/// outside of `out` are ignored: inputs are checked before a step.
void scatterAdd(const ScatterAddCommand &command, const float *rows,
                const void *ids, float *out, const ThreadTeam &team);

/// A copy with its dimensions merged and ordered for the caches.
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

#endif // CLEAVE_RUNTIME_MOVEMENT_H
