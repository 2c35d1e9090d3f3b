//===- DecomposeFeatureNorms.h - Layer norms as sums ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Decomposes norms over features (layer norm, RMS norm and their gradients)
/// into sums over rows. The norm op needs unsharded rows. With sums, features
/// can be sharded: each device contributes two partial sums per row, in forward
/// and in backward.
/// ```mlir
/// %y, %rstd = graph.rms_norm %x weight %w
/// // becomes
/// %rstd = graph.rsqrt ((graph.reduce sum (%x * %x)) / n + epsilon)
/// %y = %x * %rstd * %w
/// ```
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_DECOMPOSEFEATURENORMS_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_DECOMPOSEFEATURENORMS_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace cleave::spmd {

/// Rewrites the norms of `function`, and their gradients, for which `splits`
/// returns true given the normalized value (the operand of the norm).
void decomposeFeatureNorms(mlir::func::FuncOp function,
                           llvm::function_ref<bool(mlir::Value)> splits);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_DECOMPOSEFEATURENORMS_H
