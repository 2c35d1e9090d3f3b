//===- StepParts.h - What of a step is backward or update -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The parts of a step, by dataflow. What depends on a gradient is update, and
/// so is what nothing but updates reads: the norm of a parameter, its decay,
/// corrections of the learning rate. Of the rest, what depends on a seed is
/// backward, and all else is forward.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_ANALYSIS_STEPPARTS_H
#define CLEAVE_DIALECT_GRAPH_ANALYSIS_STEPPARTS_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace cleave::graph {

struct StepParts {
  /// Of an entry that has one block.
  explicit StepParts(mlir::func::FuncOp entry);

  /// Updates that depend on a seed are in both.
  llvm::DenseSet<mlir::Operation *> backward, update;

  bool isForward(mlir::Operation *op) const {
    return !backward.contains(op) && !update.contains(op);
  }
};

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_ANALYSIS_STEPPARTS_H
