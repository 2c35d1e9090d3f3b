//===- TensorBytes.h - The size of a tensor in bytes ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_TENSORBYTES_H
#define CLEAVE_DIALECT_GRAPH_IR_TENSORBYTES_H

#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Value.h"

namespace cleave {

/// Bytes of an element in memory; an i1 takes one.
inline int64_t elementBytes(mlir::Type element) {
  return llvm::divideCeil(element.getIntOrFloatBitWidth(), 8);
}

/// Bytes of the elements of a tensor of static shape.
inline int64_t bytesOf(mlir::RankedTensorType type) {
  return type.getNumElements() * elementBytes(type.getElementType());
}
inline int64_t bytesOf(mlir::Value value) {
  return bytesOf(llvm::cast<mlir::RankedTensorType>(value.getType()));
}

} // namespace cleave

#endif // CLEAVE_DIALECT_GRAPH_IR_TENSORBYTES_H
