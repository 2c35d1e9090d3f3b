//===- Reshard.h - The cheapest way between two shardings -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Plain C++: no op and no value appears. A plan is a sequence of movements,
/// one for each movement op of the dialect.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_RESHARD_H
#define CLEAVE_DIALECT_SPMD_IR_RESHARD_H

#include "cleave/Dialect/Spmd/IR/Moves.h"
#include <map>

namespace cleave::spmd {

struct ReshardPlan {
  llvm::SmallVector<Move, 2> moves;
  /// Why there is no way, or empty.
  std::string error;

  double elements() const;
  /// What the search minimises.
  double cost(int64_t elementBytes) const;
};

/// What one movement costs beside the bytes that it sends, in bytes: a plan
/// with fewer steps wins among plans that send as much.
double latencyOf(MoveKind kind);

/// Finds the cheapest sequence of movements that brings a tensor of global
/// shape `shape` from one sharding to another. Both must divide the shape. The
/// target may be partial only where the source is. Nothing moves along a
/// sequential axis: it can be sliced along and accumulated over.
///
/// The search is over all shardings by the digits that source and target
/// differ in, and is exact while these are few. Beyond its bound the best plan
/// found so far is given, which is the same on every run.
ReshardPlan planReshard(const Mesh &mesh, const Sharding &from,
                        const Sharding &to, llvm::ArrayRef<int64_t> shape,
                        int64_t elementBytes);

/// Plans, each found once: a model of many layers asks the same again.
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

#endif // CLEAVE_DIALECT_SPMD_IR_RESHARD_H
