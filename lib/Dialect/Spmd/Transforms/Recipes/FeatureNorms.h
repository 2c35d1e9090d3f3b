//===- FeatureNorms.h - Norms of rows that lie in parts ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A norm is one op that needs its rows whole. Written as sums over a row, each
/// device gives summands of two numbers for it, forward and backward.
/// ```mlir
/// %y, %rstd = graph.rms_norm %x weight %w
/// // becomes
/// %rstd = graph.rsqrt ((graph.reduce sum (%x * %x)) / n + epsilon)
/// %y = %x * %rstd * %w
/// ```
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_FEATURENORMS_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_FEATURENORMS_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace cleave::spmd {

/// Rewrites the norms of `function`, and their gradients, over whose rows
/// `splits` says yes of the normalised value.
void openNorms(mlir::func::FuncOp function,
               llvm::function_ref<bool(mlir::Value)> splits);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_FEATURENORMS_H
