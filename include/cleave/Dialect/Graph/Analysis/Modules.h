//===- Modules.h - A model as modules and a head ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_ANALYSIS_MODULES_H
#define CLEAVE_DIALECT_GRAPH_ANALYSIS_MODULES_H

#include "cleave/Dialect/Graph/IR/GraphDialect.h"

namespace cleave::graph {

/// The ops that lead to a loss, in order, cut at positions where only one
/// value, the hidden state, is live.
///
/// There are three kinds of ops: *activations* depend on parameters and on
/// samples, *weights* on parameters alone, and the rest on no parameter. Only
/// activations belong to modules; weights belong to each module that reads
/// them; the rest is shared by all.
class Modules {
public:
  using Ops = llvm::SmallVector<mlir::Operation *>;

  explicit Modules(mlir::func::FuncOp entry);

  /// Cuts as `modules` says: into a number of modules of even cost, or at
  /// prefixes of parameter names separated by commas: a module begins with the
  /// first reader of such a parameter. `head` is the same kind of prefix for
  /// the head, which follows the last module; if it is empty, the head begins
  /// where the hidden state is read after the last reader of a parameter of a
  /// numbered list of layers. Reports a located error if there is no such cut.
  llvm::LogicalResult cut(llvm::StringRef modules, llvm::StringRef head);

  /// The number of modules, without the head.
  unsigned count() const { return cuts.size(); }
  /// The activations of module `index`, or of the head (`count()`), in order.
  llvm::ArrayRef<mlir::Operation *> ops(unsigned index) const;
  /// The result of module `index`, or of the head (`count()`).
  mlir::Value hidden(unsigned index) const { return hiddens[index]; }
  mlir::Value loss() const { return lossValue; }

  bool isParameter(mlir::Value value) const;
  /// Whether `value` depends on parameters alone.
  bool isWeight(mlir::Value value) const {
    return fromParameters.contains(value) && !varying.contains(value);
  }
  bool dependsOnParameters(mlir::Value value) const {
    return fromParameters.contains(value);
  }

private:
  llvm::LogicalResult cutByNames(llvm::ArrayRef<llvm::StringRef> names);
  llvm::LogicalResult cutEvenly(int64_t count);
  llvm::LogicalResult cutHead(llvm::StringRef name);
  mlir::FailureOr<size_t> cutAt(llvm::StringRef name, llvm::StringRef what);
  size_t behindLayers() const;
  llvm::DenseSet<mlir::Value>
  weightsOf(llvm::function_ref<bool(llvm::StringRef)> wanted) const;
  bool readsWeight(mlir::Operation *op) const;
  mlir::Value crossing(size_t at) const;
  llvm::LogicalResult reportCrossing(size_t at, llvm::StringRef what) const;
  llvm::LogicalResult checkHidden();

  mlir::func::FuncOp entry;
  mlir::Block &body;
  mlir::Value lossValue;
  /// The activations that lead to the loss, in order.
  Ops activations;
  llvm::DenseSet<mlir::Value> fromParameters, varying;
  /// By result: the index after the last activation that reads it.
  llvm::DenseMap<mlir::Value, size_t> ends;
  /// Before each activation: how many activation values are live.
  llvm::SmallVector<size_t> live;
  /// Where the next module, or the head, begins.
  llvm::SmallVector<size_t> cuts;
  llvm::SmallVector<mlir::Value> hiddens;
};

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_ANALYSIS_MODULES_H
