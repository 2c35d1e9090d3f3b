//===- ReshardSearch.h - The search for the cheapest way --------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_IR_RESHARDSEARCH_H
#define CLEAVE_LIB_DIALECT_SPMD_IR_RESHARDSEARCH_H

#include "cleave/Dialect/Spmd/IR/Reshard.h"

namespace cleave::spmd {

/// Where each digit is: behind others in a dimension, partial, or nowhere (then
/// positions along it hold copies).
struct Arrangement {
  /// Indices of digits, major to minor.
  llvm::SmallVector<llvm::SmallVector<uint8_t, 4>, 4> dims;
  /// A bit for each digit.
  uint32_t partial = 0;

  bool operator==(const Arrangement &other) const = default;
};

/// A reshard in terms of digits that are independent of each other.
struct ReshardProblem {
  static constexpr unsigned kMaxDigits = 32;

  struct Digit {
    int64_t size;
    /// Not moved: sliced along only.
    bool sequential;
  };
  llvm::SmallVector<Digit, 8> digits;
  /// Size of each dimension, as what is fixed leaves it.
  llvm::SmallVector<int64_t, 4> shape;
  Arrangement from, to;
  /// Bytes that one element of these dimensions stands for.
  double elementBytes = 4;

  int64_t parts(llvm::ArrayRef<uint8_t> list) const;
  /// Elements of one shard.
  double elements(const Arrangement &at) const;
};

/// One movement of a path, and where it leads. Neighbouring slices, gathers or
/// reduce_scatters are one movement.
struct ReshardStep {
  MoveKind kind;
  Arrangement after;
  double elements;
};

/// The cheapest path that costs less than `bound`, within `maxStates` expanded
/// states; nothing where there is none.
std::optional<std::vector<ReshardStep>>
searchReshard(const ReshardProblem &problem, double bound, unsigned maxStates);

/// What no way from `problem.from` to `problem.to` can go below, in elements:
/// what the position that lacks most must receive.
double leastElements(const ReshardProblem &problem);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_IR_RESHARDSEARCH_H
