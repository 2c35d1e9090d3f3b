//===- Eras.h - What depends on which seed ----------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_ERAS_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_ERAS_H

#include "mlir/IR/Block.h"
#include "mlir/IR/Operation.h"

namespace cleave::spmd {

/// The eras of the ops of a block. An *era* begins with each `graph.seed`: era
/// 0 is forward, what depends on the first seed has era 1, and so on; an op
/// that depends on several has the last one's.
class Eras {
public:
  explicit Eras(mlir::Block &body);

  unsigned of(mlir::Operation *op) const { return eras.lookup(op); }
  /// The era of `value`; 0 for an argument.
  unsigned of(mlir::Value value) const {
    mlir::Operation *op = value.getDefiningOp();
    return op ? of(op) : 0;
  }
  /// The earliest era of the ops that read a result of `op`.
  unsigned firstReader(mlir::Operation *op) const;

private:
  llvm::DenseMap<mlir::Operation *, unsigned> eras;
};

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_ERAS_H
