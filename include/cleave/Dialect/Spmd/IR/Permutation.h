//===- Permutation.h - Who sends to whom in a permute -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Plain C++: the interpreter, the counting of what is sent and the run time
/// take the partner of a position from here.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_PERMUTATION_H
#define CLEAVE_DIALECT_SPMD_IR_PERMUTATION_H

#include "cleave/Dialect/Spmd/IR/Axes.h"

namespace cleave::spmd {

/// The axes, dimension by dimension, that a permute takes away and puts in
/// their place.
struct Permutation {
  llvm::SmallVector<AxisList, 4> from, to;

  /// Why this is no permutation on `mesh`, or nothing.
  std::optional<std::string> check(const Mesh &mesh) const;

  /// All axes that take part, each digit once.
  AxisList axes(const Mesh &mesh) const;

  /// The position from which the one with `coordinates` receives its shard.
  /// Each position sends to exactly one: the digits that are given up are
  /// exchanged for those taken.
  llvm::SmallVector<int64_t, 4>
  source(const Mesh &mesh, llvm::ArrayRef<int64_t> coordinates) const;
};

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_IR_PERMUTATION_H
