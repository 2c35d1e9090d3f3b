//===- DeferredOps.h - What updates are made of -----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_DEFERREDOPS_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_DEFERREDOPS_H

#include "cleave/Dialect/Graph/IR/Entry.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseSet.h"

namespace cleave::pipe {

/// The ops of an entry that can be left to the next step.
struct DeferredOps {
  explicit DeferredOps(mlir::func::FuncOp entry)
      : entry(entry), body(entry.getBody().front()) {}

  /// Reports what reads them in this step, and what they read of samples.
  llvm::LogicalResult find();

  /// What replaces an argument.
  struct Update {
    unsigned result;
    mlir::BlockArgument argument;
    /// The place of the first reader of it, or of that whose state it is.
    int64_t reader;
  };

  /// What depends on a finished gradient; of that, what is deferred, since it
  /// reads what is updated; and what that alone reads.
  llvm::DenseSet<mlir::Operation *> late, deferred, ofUpdate;
  /// The first reader's first.
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
  /// Values made of parameters and state alone; values made of samples.
  llvm::DenseSet<mlir::Value> held, sampled;
};

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_DEFERREDOPS_H
