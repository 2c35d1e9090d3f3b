//===- FactorClaims.h - Which tensor decides a factor's axes ----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The three steps of `mergeFactors`, on plain data: what each tensor of an op
/// claims for its factors, the order of claims, and who gets what he claims.
/// Only the order decides a conflict.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_FACTORCLAIMS_H
#define CLEAVE_DIALECT_SPMD_IR_FACTORCLAIMS_H

#include "cleave/Dialect/Spmd/IR/OpFactors.h"

namespace cleave::spmd {

/// The axes that one dimension of an operand or a result gives to one factor,
/// or the first of them.
struct FactorClaim {
  bool isResult;
  unsigned tensor, dim;
  int64_t factor;
  AxisList axes;
  /// These are all axes of the factor in this tensor.
  bool all = true;
  /// The number of tensors with the same axes, and their elements.
  int64_t voters = 0, elements = 0;

  /// Returns "operand 0 shards dimension 1 over {"tp"}".
  std::string describe(llvm::ArrayRef<const Sharding *> operands,
                       llvm::ArrayRef<const Sharding *> results) const;
};

using FactorClaims = llvm::SmallVector<FactorClaim, 8>;
using Conflict = llvm::function_ref<void(const std::string &)>;

/// Returns the claims of all tensors that are used, operands before results (or
/// results first where the rule requires it). Axes that the op cannot keep are
/// no claims (cases 7 and 8).
FactorClaims collectClaims(const Mesh &mesh, const graph::ShardingRule &rule,
                           llvm::ArrayRef<const Sharding *> operands,
                           llvm::ArrayRef<const Sharding *> results,
                           Conflict conflict);

/// Orders claims, the first to be met first (cases 1 to 4): those of an
/// annotation, then those that most tensors make, then those of larger tensors,
/// then as they were.
void orderClaims(const Mesh &mesh, const graph::ShardingRule &rule,
                 FactorClaims &claims);

/// Returns the axes of each factor: claims are met in order, each as far as its
/// axes are free and continue those that its factor has (cases 1, 5 and 6).
FactorAxes grantClaims(const Mesh &mesh, const graph::ShardingRule &rule,
                       llvm::ArrayRef<FactorClaim> claims,
                       llvm::ArrayRef<const Sharding *> operands,
                       llvm::ArrayRef<const Sharding *> results,
                       Conflict conflict);

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_IR_FACTORCLAIMS_H
