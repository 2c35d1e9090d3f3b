//===- IntegerRanges.h - Value ranges of integer results --------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_INTEGERRANGES_H
#define CLEAVE_DIALECT_GRAPH_IR_INTEGERRANGES_H

namespace mlir {
class DialectRegistry;
} // namespace mlir

namespace cleave::graph {

/// Registers, for ops with integer results, the range of a result's elements
/// given the ranges of the operands, for MLIR's IntegerRangeAnalysis.
void registerIntegerRangeModels(mlir::DialectRegistry &registry);

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_IR_INTEGERRANGES_H
