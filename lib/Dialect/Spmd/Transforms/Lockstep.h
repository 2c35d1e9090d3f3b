//===- Lockstep.h - Products that take their steps together -----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_LOCKSTEP_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_LOCKSTEP_H

#include "ContractionSteps.h"

namespace cleave::spmd {

/// Products whose steps alternate, in their order.
using Lockstep = llvm::SmallVector<ContractionSteps *, 3>;

/// Decides which of the products of a block, in their order, go in lockstep:
/// those that are sent the same, where that moves none of them past other work.
/// Moves these next to each other. Products that are sent the same and stay
/// apart will be sent it each, but for what is held.
std::vector<Lockstep>
findLocksteps(llvm::MutableArrayRef<ContractionSteps> products);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_LOCKSTEP_H
