//===- InputValues.h - Values that depend on inputs alone -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_ANALYSIS_INPUTVALUES_H
#define CLEAVE_DIALECT_GRAPH_ANALYSIS_INPUTVALUES_H

#include "cleave/Dialect/Graph/IR/GraphOps.h"

namespace cleave::graph {

/// Whether `value` depends only on inputs and buffers, and on at least one.
bool dependsOnInputsAlone(mlir::func::FuncOp entry, mlir::Value value);

/// The sum over inputs, such as the number of valid targets, that the scalar
/// `loss` is inversely proportional to; null if the loss is not such a mean.
/// The losses of several batches, weighted by it, give the loss of all of them.
mlir::Value findMeanCount(mlir::func::FuncOp entry, mlir::Value loss);

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_ANALYSIS_INPUTVALUES_H
