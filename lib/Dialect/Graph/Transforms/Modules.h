//===- Modules.h - A model as modules and a head ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_MODULES_H
#define CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_MODULES_H

#include "cleave/Dialect/Graph/IR/GraphDialect.h"

namespace cleave::graph {

/// What leads to a loss, in order, cut where one value alone, the hidden state,
/// goes on to what follows.
///
/// Three kinds of ops are told apart: *activations* depend on parameters and on
/// samples, *weights* on parameters alone, and the rest on no parameter.
/// Activations alone belong to modules; weights to each module that reads them;
/// the rest is everybody's.
class Modules {
public:
  using Ops = llvm::SmallVector<mlir::Operation *>;

  explicit Modules(mlir::func::FuncOp entry);

  /// Cuts where `modules` says: into so many modules of even cost, or where the
  /// beginnings of names of parameters say, with commas between: a module
  /// begins with what first reads such a parameter. The head, behind the last
  /// module, begins at `head` in the same sense; where that is empty, where the
  /// hidden state is left behind what reads the last parameter of a numbered
  /// list of layers. Reports a located error where there is no such cut.
  llvm::LogicalResult cut(llvm::StringRef modules, llvm::StringRef head);

  /// Of the modules, without the head.
  unsigned count() const { return cuts.size(); }
  /// The activations of module `index`, or of the head (`count()`), in order.
  llvm::ArrayRef<mlir::Operation *> ops(unsigned index) const;
  /// What module `index` ends with.
  mlir::Value hidden(unsigned index) const { return hiddens[index]; }
  mlir::Value loss() const { return lossValue; }

  bool isParameter(mlir::Value value) const;
  /// Whether `value` is made of parameters alone.
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
  /// By result: the index behind the last activation that reads it.
  llvm::DenseMap<mlir::Value, size_t> ends;
  /// Before each activation: how many values of activations go on.
  llvm::SmallVector<size_t> live;
  /// Where the next module, or the head, begins.
  llvm::SmallVector<size_t> cuts;
  llvm::SmallVector<mlir::Value> hiddens;
};

} // namespace cleave::graph

#endif // CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_MODULES_H
