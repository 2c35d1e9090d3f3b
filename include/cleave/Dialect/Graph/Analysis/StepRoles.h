//===- StepRoles.h - Forward, backward and update by dataflow ---*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The roles of the ops of a step. An op that is or depends on a
/// `graph.gradient` is update, else one that is or depends on a `graph.seed` is
/// backward, and every other op is forward:
///
///   %loss = ...                      // forward
///   %seed = graph.seed %loss         // backward
///   %dw = graph.contract %x, %seed
///   %g = graph.gradient %dw of "w"   // update
///   %new = graph.sub %w, %g
///
/// Two more questions have answers of their own. An op that depends on no
/// gradient *serves updates* if nothing but updates reads it: the norm of a
/// parameter, its decay, a correction of the learning rate. And an update may
/// *depend on a seed* or not: the seed index tells, as it tells what may be
/// computed before which backward where there are several.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_ANALYSIS_STEPROLES_H
#define CLEAVE_DIALECT_GRAPH_ANALYSIS_STEPROLES_H

#include "mlir/IR/Block.h"
#include "mlir/IR/Operation.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLFunctionalExtras.h"

namespace cleave::graph {

enum class StepRole : unsigned { Forward, Backward, Update };

class StepRoles {
public:
  /// Finds the roles of the ops of `body`. `reads`, if it is not null, says
  /// whether an op depends on the value of its operand.
  explicit StepRoles(
      mlir::Block &body,
      llvm::function_ref<bool(mlir::OpOperand &)> reads = nullptr);

  /// The role of an op; forward for the terminator, which returns values of all
  /// roles, and for an op that was not there.
  StepRole of(mlir::Operation *op) const { return roles.lookup(op).role; }
  bool isForward(mlir::Operation *op) const {
    return of(op) == StepRole::Forward;
  }
  bool isUpdate(mlir::Operation *op) const {
    return of(op) == StepRole::Update;
  }

  /// The number, from 1, of the last seed that `op` is or depends on; 0 for
  /// none.
  unsigned seedIndex(mlir::Operation *op) const {
    return roles.lookup(op).seed;
  }
  bool dependsOnSeed(mlir::Operation *op) const { return seedIndex(op) != 0; }
  /// Whether there is a seed.
  bool hasBackward() const { return seeds != 0; }

  /// Whether `op` is update, or nothing but ops that serve updates reads it. A
  /// gradient is what backward gives: its operand does not serve updates.
  bool servesUpdate(mlir::Operation *op) const { return serving.contains(op); }

private:
  struct Role {
    StepRole role = StepRole::Forward;
    unsigned seed = 0;
  };

  void add(mlir::Operation *op,
           llvm::function_ref<bool(mlir::OpOperand &)> reads);

  unsigned seeds = 0;
  llvm::DenseMap<mlir::Operation *, Role> roles;
  llvm::DenseSet<mlir::Operation *> serving;
};

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_ANALYSIS_STEPROLES_H
