//===- CheckFinite.h - A step stops at numbers that are not finite -*- C++
//-*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_CHECKFINITE_H
#define CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_CHECKFINITE_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace cleave::graph {

/// Builds the 2-norm of all gradients of a step, a scalar, in f32 if their
/// types differ.
mlir::Value buildGlobalNorm(mlir::OpBuilder &builder, mlir::Location loc,
                            mlir::ValueRange gradients);

/// Builds, before the terminator of `step`, a check that its losses are finite
/// and a check that all `gradients` are. Without gradients, only the former: a
/// step that clips checks their norm. A step of which they fail is stopped, or,
/// if they skip it, skipped.
void buildFiniteChecks(mlir::OpBuilder &builder, mlir::func::FuncOp step,
                       mlir::ValueRange gradients, bool skips = false);

/// Builds a check that `size`, a scalar that is not negative, is finite; a step
/// that fails it stops, or is skipped, and says `message`.
void buildFiniteCheck(mlir::OpBuilder &builder, mlir::Location loc,
                      mlir::Value size, llvm::StringRef message,
                      bool skips = false);

} // namespace cleave::graph

#endif // CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_CHECKFINITE_H
