//===- DeferredOps.h - The ops of deferred updates --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_UPDATES_DEFERREDOPS_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_UPDATES_DEFERREDOPS_H

#include "cleave/Dialect/Graph/IR/Entry.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseSet.h"

namespace cleave::pipe {

/// The ops of an entry that are deferred to the next step.
struct DeferredOps {
  explicit DeferredOps(mlir::func::FuncOp entry)
      : entry(entry), body(entry.getBody().front()) {}

  /// Finds the ops. Emits an error if this step reads their results, or if they
  /// depend on samples.
  llvm::LogicalResult find();

  /// The update of an argument.
  struct Update {
    /// The number of the entry's result that is the new value.
    unsigned result;
    mlir::BlockArgument argument;
    /// The place of the first reader of the argument; for optimizer state, of
    /// its parameter.
    int64_t reader;
  };

  /// The ops that depend on a finished gradient; those of them that are
  /// deferred, because they read an updated argument; and the ops that only
  /// deferred ones read.
  llvm::DenseSet<mlir::Operation *> late, deferred, ofUpdate;
  /// The updates, in the order of their first readers.
  llvm::SmallVector<Update> updates;

private:
  llvm::StringRef argString(mlir::BlockArgument argument,
                            llvm::StringRef name) {
    return graph::getArgString(entry, argument.getArgNumber(), name);
  }
  bool isHeld(mlir::Value value);
  void findOps();
  llvm::LogicalResult findUpdates();
  llvm::LogicalResult verifyOperands();

  mlir::func::FuncOp entry;
  mlir::Block &body;
  /// Values that depend on parameters and state alone; values that depend on
  /// samples.
  llvm::DenseSet<mlir::Value> held, sampled;
};

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_UPDATES_DEFERREDOPS_H
