//===- OpFactors.h - Shardings of an op through its factors -----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Computes the shardings of an op's operands and results from its sharding
/// rule, on plain data. Partition and verification share these functions, so
/// that they agree.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_OPFACTORS_H
#define CLEAVE_DIALECT_SPMD_IR_OPFACTORS_H

#include "cleave/Dialect/Spmd/IR/Axes.h"
#include "llvm/ADT/STLFunctionalExtras.h"

namespace cleave::spmd {

/// On an op with an operand or result that is rotated around a ring, where the
/// op's rule does not express it: `{operand = 1, dim = 2, steps = 1}`, or
/// `result` for `operand`.
inline constexpr llvm::StringLiteral kRingShiftAttr = "spmd.ring_shift";

/// Returns the sizes of `factors`.
llvm::SmallVector<int64_t, 2> factorSizes(const graph::ShardingRule &rule,
                                          llvm::ArrayRef<int64_t> factors);

/// Returns the axes of each factor, merged from the shardings of operands and
/// results. Where they disagree, the axes of most tensors win, then those of
/// larger tensors, then the first in order, operands before results. Results
/// take precedence over all operands where the rule requires it. Each
/// disagreement is passed to `conflict` as a sentence. A factor that must be
/// replicated gets no axes. Operands that are unused in the rule are ignored.
FactorAxes mergeFactors(const Mesh &mesh, const graph::ShardingRule &rule,
                        llvm::ArrayRef<const Sharding *> operands,
                        llvm::ArrayRef<const Sharding *> results,
                        llvm::function_ref<void(const std::string &)> conflict);

/// Returns the axes of each dimension of a tensor whose factors are `mapping`.
llvm::SmallVector<AxisList, 4>
projectFactors(const Mesh &mesh, const graph::ShardingRule &rule,
               const graph::FactorMapping &mapping, const FactorAxes &axes);

/// The operands that must be reduced before an op, and the partial axes of its
/// results then.
struct PartialPlan {
  struct Reduction {
    unsigned operand;
    PartialAxis partial;
  };
  llvm::SmallVector<Reduction, 2> reductions;
  /// For each result, the axes on which it is partial.
  llvm::SmallVector<PartialList, 2> results;
};

/// Decides for each digit which partial operands an op takes unreduced: the
/// largest of the rule's linear sets whose operands are all partial, measured
/// in `elements` of the operands. Other partial operands are reduced. Axes of
/// size 1 need no reduction. The op itself reduces its first operand over
/// `own`.
PartialPlan planPartials(const Mesh &mesh, const graph::ShardingRule &rule,
                         const FactorAxes &axes,
                         llvm::ArrayRef<const Sharding *> operands,
                         llvm::ArrayRef<int64_t> elements,
                         llvm::ArrayRef<AxisRef> own = {});

/// Returns the axes of `made`, on which an op makes its result partial, without
/// those over which `sharding` shards the result.
PartialList staysPartial(const Mesh &mesh, const Sharding &sharding,
                         llvm::ArrayRef<PartialAxis> made);

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_IR_OPFACTORS_H
