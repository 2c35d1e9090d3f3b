//===- Permutation.h - Sources and targets of a permute ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Computes the position from which each position receives in an
/// `spmd.permute`. The interpreter, the costs and the lowering to the run time
/// share it.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_RESHARDING_PERMUTATION_H
#define CLEAVE_DIALECT_SPMD_IR_RESHARDING_PERMUTATION_H

#include "cleave/Dialect/Spmd/IR/Axes.h"

namespace cleave::spmd {

/// The axes of each dimension that a permute removes (`from`), and those that
/// replace them (`to`).
struct Permutation {
  llvm::SmallVector<AxisList, 4> from, to;

  /// Returns why this is not a permutation on `mesh`, or nothing.
  std::optional<std::string> check(const Mesh &mesh) const;

  /// Returns all axes that take part, each digit once.
  AxisList axes(const Mesh &mesh) const;

  /// Returns the position from which the position `coordinates` receives its
  /// shard. Each position sends to exactly one: the digits of `from` are
  /// exchanged for those of `to`.
  llvm::SmallVector<int64_t, 4>
  source(const Mesh &mesh, llvm::ArrayRef<int64_t> coordinates) const;
};

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_IR_RESHARDING_PERMUTATION_H
