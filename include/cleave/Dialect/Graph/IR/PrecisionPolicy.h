//===- PrecisionPolicy.h - Precision of operands ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_PRECISIONPOLICY_H
#define CLEAVE_DIALECT_GRAPH_IR_PRECISIONPOLICY_H

#include <cstdint>

namespace mlir {
class DialectRegistry;
} // namespace mlir

namespace cleave::graph {

/// The precision in which a step of mixed precision reads an operand.
enum class OperandPrecision : uint8_t {
  Narrow, ///< 16 bits: a factor of products that are summed in f32
  F32,    ///< f32: what is summed, exponentiated, compared, or a loss
  Same,   ///< that of the other operands of this kind
};

/// Registers the precisions of graph ops.
void registerPrecisionModels(mlir::DialectRegistry &registry);

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_IR_PRECISIONPOLICY_H
