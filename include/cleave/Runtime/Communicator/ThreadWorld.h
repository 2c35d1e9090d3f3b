//===- ThreadWorld.h - Ranks that are threads -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_COMMUNICATOR_THREADWORLD_H
#define CLEAVE_RUNTIME_COMMUNICATOR_THREADWORLD_H

#include "cleave/Runtime/Communicator/Communicator.h"
#include <memory>

namespace cleave::runtime {

/// The communicators of ranks that are threads of this process. They read each
/// other's memory: nothing is sent. The work of a reduction is divided among
/// the ranks: each combines its share of the elements for all.
class ThreadWorld {
public:
  /// `cores` of 0 means the number that this thread may use.
  explicit ThreadWorld(int ranks, int cores = 0);
  ~ThreadWorld();

  int size() const;

  /// The communicator of `rank`, closed by its user; called once for each rank.
  /// The world must outlive it. Calls from different ranks may overlap.
  cleave_communicator *connect(int rank, const cleave_team &team);

  struct Shared;

private:
  std::unique_ptr<Shared> shared;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_COMMUNICATOR_THREADWORLD_H
