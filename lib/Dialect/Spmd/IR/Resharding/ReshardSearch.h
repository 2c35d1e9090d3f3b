//===- ReshardSearch.h - The search for the cheapest reshard ----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_IR_RESHARDING_RESHARDSEARCH_H
#define CLEAVE_LIB_DIALECT_SPMD_IR_RESHARDING_RESHARDSEARCH_H

#include "cleave/Dialect/Spmd/IR/Resharding/Reshard.h"

namespace cleave::spmd {

/// The use of each digit: in a dimension, partial, or none (the positions along
/// it hold copies).
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
    /// A sequential digit allows slices only.
    bool sequential;
  };
  llvm::SmallVector<Digit, 8> digits;
  /// The size of each dimension divided by its fixed axes.
  llvm::SmallVector<int64_t, 4> shape;
  Arrangement from, to;
  /// The bytes of one element of these dimensions.
  double elementBytes = 4;

  int64_t parts(llvm::ArrayRef<uint8_t> list) const;
  /// Returns the number of elements of one shard.
  double elements(const Arrangement &at) const;
};

/// One collective of a path, and the arrangement after it. Adjacent slices,
/// gathers or reduce_scatters are one collective.
struct SearchStep {
  CollectiveKind kind;
  Arrangement after;
  double elements;
};

/// Returns the cheapest path that costs less than `bound`, within `maxStates`
/// expanded states; nothing if there is none.
std::optional<std::vector<SearchStep>>
searchReshard(const ReshardProblem &problem, double bound, unsigned maxStates);

/// Returns a lower bound on the elements sent by any path from `problem.from`
/// to `problem.to`: the elements that the position that lacks most must
/// receive.
double leastElements(const ReshardProblem &problem);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_IR_RESHARDING_RESHARDSEARCH_H
