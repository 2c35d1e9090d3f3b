//===- AdditiveParameters.h - Parameters that are added ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_ADDITIVEPARAMETERS_H
#define CLEAVE_DIALECT_GRAPH_IR_ADDITIVEPARAMETERS_H

#include "mlir/IR/Operation.h"
#include "llvm/ADT/DenseSet.h"

namespace cleave::graph {

/// Marks a trained parameter that the model adds, as it does a bias.
inline constexpr llvm::StringLiteral kAdditiveAttr = "graph.additive";

/// Finds the parameters that a model adds: those with respect to which the
/// slope of each op that reads them is a constant. An op tells by the gradient
/// that it builds, which then depends on the gradients of its results alone.
class AdditiveParameters {
public:
  /// `forward` are the ops of the model, first to last.
  AdditiveParameters(llvm::ArrayRef<mlir::Value> parameters,
                     llvm::ArrayRef<mlir::Operation *> forward);

  /// Takes the gradients that `op` has built. Ops are visited last to first.
  void visit(mlir::Operation &op, llvm::ArrayRef<mlir::Value> resultGradients,
             llvm::ArrayRef<mlir::Value> operandGradients);

  /// Whether `parameter` is read, and added by all that read it.
  bool contains(mlir::Value parameter) const {
    return read.contains(parameter) && !others.contains(parameter);
  }

private:
  bool hasConstantSlope(mlir::Value gradient,
                        llvm::ArrayRef<mlir::Value> resultGradients) const;

  llvm::DenseSet<mlir::Operation *> model;
  /// Values that depend on parameters and constants alone, such as a parameter
  /// in another shape: what reads them decides.
  llvm::DenseSet<mlir::Value> alone;
  llvm::DenseSet<mlir::Value> read, others;
};

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_IR_ADDITIVEPARAMETERS_H
