//===- OpFactors.h - Shardings of an op through its factors -----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Plain C++ between a rule and the shardings of operands and results.
/// Partition and verification ask the same questions here, so that they agree.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_OPFACTORS_H
#define CLEAVE_DIALECT_SPMD_IR_OPFACTORS_H

#include "cleave/Dialect/Spmd/IR/Axes.h"
#include "llvm/ADT/STLFunctionalExtras.h"

namespace cleave::spmd {

/// On an op that means to meet parts that were passed on around a ring, and whose
/// rule does not say so: `{operand = 1, dim = 2, steps = 1}`, or of a `result`.
inline constexpr llvm::StringLiteral kTurnedAttr = "spmd.turned";

/// What operands and results together say of each factor. Where they disagree,
/// that wins which more of them say; then what larger ones say; then the first
/// in order, operands before results. Results come first of all where the rule
/// says so. Each disagreement is given to `conflict` as a sentence. A factor
/// that must be whole takes no axes. Operands that the rule does not read have
/// no say.
FactorAxes mergeFactors(const Mesh &mesh, const graph::ShardingRule &rule,
                        llvm::ArrayRef<const Sharding *> operands,
                        llvm::ArrayRef<const Sharding *> results,
                        llvm::function_ref<void(const std::string &)> conflict);

/// The axes of each dimension of a tensor that runs along `mapping`.
llvm::SmallVector<AxisList, 4>
projectFactors(const Mesh &mesh, const graph::ShardingRule &rule,
               const graph::FactorMapping &mapping, const FactorAxes &axes);

/// Which operands must be reduced before an op, and what is then partial.
struct PartialPlan {
  struct Reduction {
    unsigned operand;
    PartialAxis partial;
  };
  llvm::SmallVector<Reduction, 2> reductions;
  /// For each result, the axes on which it is partial.
  llvm::SmallVector<PartialList, 2> results;
};

/// Decides, digit by digit, which partial operands an op can take as they are:
/// the largest of the rule's linear sets that is partial as a whole, counted in
/// `elements` of the operands; the others are reduced. Axes of size 1 need no
/// reduction. The op itself sums up its first operand over `own`.
PartialPlan planPartials(const Mesh &mesh, const graph::ShardingRule &rule,
                         const FactorAxes &axes,
                         llvm::ArrayRef<const Sharding *> operands,
                         llvm::ArrayRef<int64_t> elements,
                         llvm::ArrayRef<AxisRef> own = {});

/// On what a result stays partial that its op makes partial on `made`: not on
/// axes by which `sharding` splits it.
PartialList staysPartial(const Mesh &mesh, const Sharding &sharding,
                         llvm::ArrayRef<PartialAxis> made);

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_IR_OPFACTORS_H
