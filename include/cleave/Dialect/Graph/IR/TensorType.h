//===- TensorType.h - The tensor type of a value -------------- -*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_TENSORTYPE_H
#define CLEAVE_DIALECT_GRAPH_IR_TENSORTYPE_H

#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Value.h"

namespace cleave::graph {

/// The type of a value that is a tensor, as all values of a step are.
inline mlir::RankedTensorType tensorTypeOf(mlir::Value value) {
  return llvm::cast<mlir::RankedTensorType>(value.getType());
}

/// The shape and element type of `value`, without its encoding, which the
/// results of an op do not inherit.
inline mlir::RankedTensorType denseTypeOf(mlir::Value value) {
  mlir::RankedTensorType type = tensorTypeOf(value);
  return mlir::RankedTensorType::get(type.getShape(), type.getElementType());
}

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_IR_TENSORTYPE_H
