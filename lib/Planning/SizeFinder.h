//===- SizeFinder.h - Sizes that a closed form reads ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_PLANNING_SIZEFINDER_H
#define CLEAVE_LIB_PLANNING_SIZEFINDER_H

#include "cleave/ClosedForms/Sizes.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace cleave {

/// Reads one entry.
class SizeFinder {
public:
  explicit SizeFinder(mlir::func::FuncOp entry) : entry(entry) {}

  closedforms::ModelSizes find();

private:
  void classify(mlir::Operation &op);
  void addContraction(mlir::Operation &op);
  void addAttention(graph::AttentionOp op);
  void addActivation(mlir::Operation &op);
  void addLookup(graph::GatherOp op);
  void addBranch(graph::AddOp op);
  void addLoss(graph::CrossEntropyOp op);
  void addRouter(graph::TopKOp op);
  void addNorm(mlir::Operation &op);
  void addExperts(graph::ContractOp op, closedforms::Contraction &own);
  void addRowsOfExperts(graph::GroupedLinearOp op);
  void followExperts(mlir::Operation &op);
  void describe(closedforms::Mixture &mixture);
  /// Recipes of features leave what the contraction `op` multiplies by whole.
  void keepWhole(mlir::Operation &op);
  /// The value that `value` is in another shape or type, or a part of.
  static mlir::Value lookThrough(mlir::Value value);
  static double elementsOf(mlir::Value value);
  static bool isContraction(mlir::Operation *op);
  /// The parameter that `value` is, in another shape or type; null if none.
  closedforms::Parameter *parameterOf(mlir::Value value);
  /// The contraction whose output `value` is, with a bias, scaled, or in
  /// another shape; null if there is none.
  mlir::Operation *contractionOf(mlir::Value value) const;
  bool isOfParameters(mlir::Value value) const {
    return ofParameters.contains(value);
  }
  bool hasGradient(mlir::Value value) const { return trained.contains(value); }

  mlir::func::FuncOp entry;
  closedforms::ModelSizes sizes;
  llvm::DenseMap<mlir::Value, size_t> parameters;
  /// Values that depend on trained parameters by floats, on parameters and
  /// constants alone, and on no input.
  llvm::DenseSet<mlir::Value> trained, ofParameters, constants;
  /// What contractions have read; what activations give; values with a place
  /// for each expert; and what tokens got of them.
  llvm::DenseSet<mlir::Value> read, activations, ofExperts, ofMixtures;
  /// The last choice among experts.
  graph::TopKOp choice;
  llvm::DenseMap<mlir::Operation *, size_t> contractions;
};

} // namespace cleave

#endif // CLEAVE_LIB_PLANNING_SIZEFINDER_H
