//===- Evaluation.h - The elements that an op computes ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_RAISE_EVALUATION_H
#define CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_RAISE_EVALUATION_H

#include "KnownValues.h"

namespace cleave::graph {

/// The elements of a constant.
std::unique_ptr<Elements> elementsOf(mlir::DenseElementsAttr value);

/// The result of `op` by the elements of its operands; null for an op that
/// computes no positions, masks or tables, or whose result stores more than
/// `limit` elements. The reference semantics are those of the interpreter.
std::unique_ptr<Elements> evaluate(mlir::Operation *op,
                                   llvm::ArrayRef<const Elements *> operands,
                                   int64_t limit);

} // namespace cleave::graph

#endif // CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_RAISE_EVALUATION_H
