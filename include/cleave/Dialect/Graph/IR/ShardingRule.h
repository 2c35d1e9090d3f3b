//===- ShardingRule.h - How an op can be sharded ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Plain data about factors, operands and results, without devices, meshes or
/// op names.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_SHARDINGRULE_H
#define CLEAVE_DIALECT_GRAPH_IR_SHARDINGRULE_H

#include "cleave/Support/ReductionKind.h"
#include "llvm/ADT/SmallVector.h"
#include <cstdint>

namespace cleave::graph {

using cleave::ReductionKind;

/// What the padding of an unevenly sharded factor must hold in the operands, so
/// that the valid elements of the results are right.
enum class PaddingNeed : uint8_t {
  Any,      ///< padded elements never reach valid ones
  Zero,     ///< they must be zero
  Identity, ///< they must be the reduction's identity
  Refused   ///< no padding is allowed: the op needs equal pieces
};

enum class FactorKind : uint8_t {
  /// Operands and results have it: slices of results concatenate.
  Parallel,
  /// Slices of results that lack the factor combine by `partial`; those of
  /// results that have it concatenate.
  Reduction,
  /// Must be replicated.
  Replicated
};

/// One factor of the iteration space, like an index of an einsum.
struct Factor {
  int64_t size = 1;
  FactorKind kind = FactorKind::Parallel;
  /// How slices of a result that lacks the factor combine when it is sharded.
  ReductionKind partial = ReductionKind::Sum;
  PaddingNeed padding = PaddingNeed::Any;
};

/// For each dimension of a tensor, its factors from major to minor. A dimension
/// without factors is broadcast (size 1) or absent from the rule, and is never
/// sharded.
using FactorMapping = llvm::SmallVector<llvm::SmallVector<int64_t, 2>, 4>;

/// Operands and results whose shards along `factor` have been passed `steps`
/// times around a ring when the op reads or writes them.
struct RingShift {
  int64_t factor = -1;
  int64_t steps = 0;
  llvm::SmallVector<unsigned, 3> operands;
  llvm::SmallVector<unsigned, 2> results;
};

struct ShardingRule {
  llvm::SmallVector<Factor, 6> factors;
  llvm::SmallVector<FactorMapping, 3> operands;
  llvm::SmallVector<FactorMapping, 2> results;
  /// Joint linearity: each entry is a set of operands. When exactly these are
  /// sum-partial on an axis and all others are replicated on it, the results
  /// are sum-partial on it too: {{0, 1}} for add, {{0}, {1}} for mul.
  llvm::SmallVector<llvm::SmallVector<unsigned, 2>, 2> linear;
  /// Operands of which only the type is read: any sharding is allowed.
  llvm::SmallVector<unsigned, 1> unused;
  /// By default no shard has been passed on.
  RingShift shift;
  /// Where shardings of operands and results conflict, those of results win,
  /// because they are annotated.
  bool resultsFirst = false;
  /// Whether zero padding is kept: if all operands that run along a factor are
  /// zero, or none runs along it, so are the results, even if the op is not
  /// linear in them.
  bool keepsZero = false;

  /// Adds a factor and returns its index.
  int64_t addFactor(int64_t size, FactorKind kind = FactorKind::Parallel,
                    ReductionKind partial = ReductionKind::Sum,
                    PaddingNeed padding = PaddingNeed::Any) {
    factors.push_back({size, kind, partial, padding});
    return factors.size() - 1;
  }
};

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_IR_SHARDINGRULE_H
