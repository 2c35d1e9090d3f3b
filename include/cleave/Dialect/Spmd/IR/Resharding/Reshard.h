//===- Reshard.h - The cheapest reshard between two shardings ---*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Plans reshards, on plain data. A plan is a sequence of collectives, one for
/// each op of the dialect.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_RESHARDING_RESHARD_H
#define CLEAVE_DIALECT_SPMD_IR_RESHARDING_RESHARD_H

#include "cleave/Dialect/Spmd/IR/Resharding/Collective.h"
#include <map>

namespace cleave::spmd {

/// The collectives of a reshard, or why there are none.
struct ReshardPlan {
  llvm::SmallVector<Collective, 2> moves;
  /// The reason why the reshard is impossible, or empty.
  std::string error;
  /// Whether it is that data would move along a sequential axis.
  bool alongSequential = false;

  /// Returns the number of elements that each position sends.
  double elements() const;
  /// Returns the cost that the search minimises, in bytes.
  double cost(int64_t elementBytes) const;
};

/// Returns the fixed cost of a collective, in bytes. It makes plans of fewer
/// collectives win among plans that send the same number of bytes.
double latencyOf(CollectiveKind kind);

/// Finds the cheapest sequence of collectives that reshards a tensor of global
/// shape `shape`. The shape must be divisible by both shardings. The target may
/// be partial only where the source is. A sequential axis allows slices and
/// reductions (accumulation), but no exchange of data.
///
/// The search covers all shardings by the digits in which source and target
/// differ, and is exact while these are few. Beyond a bound on its states it
/// returns the best plan found, which is the same on every run.
ReshardPlan planReshard(const Mesh &mesh, const Sharding &from,
                        const Sharding &to, llvm::ArrayRef<int64_t> shape,
                        int64_t elementBytes);

/// Plans reshards, and caches the plans: the layers of a model need the same
/// ones.
class ReshardPlanner {
public:
  explicit ReshardPlanner(Mesh mesh) : mesh(std::move(mesh)) {}

  const ReshardPlan &plan(const Sharding &from, const Sharding &to,
                          llvm::ArrayRef<int64_t> shape, int64_t elementBytes);

private:
  Mesh mesh;
  std::map<std::string, ReshardPlan> plans;
};

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_IR_RESHARDING_RESHARD_H
