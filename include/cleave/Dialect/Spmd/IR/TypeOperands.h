//===- TypeOperands.h - Operands of which ops read the type -----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_TYPEOPERANDS_H
#define CLEAVE_DIALECT_SPMD_IR_TYPEOPERANDS_H

#include "mlir/IR/Block.h"
#include "mlir/IR/Operation.h"
#include "llvm/ADT/DenseMap.h"

namespace cleave::spmd {

/// The operands of which ops read only the type, as a seed that of its loss. A
/// barrier reads no element of the value that it waits for, and still depends
/// on it: this operand is none of them.
class TypeOperands {
public:
  TypeOperands() = default;
  explicit TypeOperands(mlir::Block &body);

  /// Adds the operands of an op; forgets those of an op that is erased.
  void add(mlir::Operation *op);
  void forget(mlir::Operation *op) { operands.erase(op); }
  void clear() { operands.clear(); }

  bool contains(mlir::OpOperand &operand) const;

private:
  llvm::DenseMap<mlir::Operation *, llvm::SmallVector<unsigned, 1>> operands;
};

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_IR_TYPEOPERANDS_H
