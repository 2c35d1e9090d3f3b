//===- SeedOrder.h - The seeds that ops depend on ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_TRANSFORMS_PROPAGATION_SEEDORDER_H
#define CLEAVE_DIALECT_SPMD_TRANSFORMS_PROPAGATION_SEEDORDER_H

#include "cleave/Dialect/Graph/Analysis/StepRoles.h"

namespace cleave::spmd {

/// The seed index of each op of a block: the number of the last `graph.seed`
/// that the op depends on, counted from 1 in the order of the block. Ops of
/// forward depend on no seed, and have index 0.
class SeedOrder {
public:
  explicit SeedOrder(mlir::Block &body);

  /// Returns the seed index of `op`.
  unsigned of(mlir::Operation *op) const { return roles.seedIndex(op); }
  /// Returns the seed index of the op that defines `value`; 0 for an argument.
  unsigned of(mlir::Value value) const {
    mlir::Operation *op = value.getDefiningOp();
    return op ? of(op) : 0;
  }
  /// Returns the smallest seed index of the ops that read a result of `op`.
  unsigned firstReader(mlir::Operation *op) const;

private:
  graph::StepRoles roles;
};

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_TRANSFORMS_PROPAGATION_SEEDORDER_H
