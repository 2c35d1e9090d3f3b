//===- DecomposeGlobalNorm.h - The norm of all gradients --------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Decomposes the 2-norm of all gradients into the root of sums of squares, so
/// that each shard of a gradient contributes a partial sum.
/// ```mlir
/// %n = graph.global_norm %a, %b
/// // becomes
/// %s = graph.reduce sum (%a * %a)
/// %t = graph.reduce sum (%b * %b)
/// %n = graph.sqrt (%s + %t)
/// ```
/// Sums of gradients that are sharded over the same axes are added first, so
/// that each group of devices reduces one number.
///
/// With grains, the order of the sums depends neither on the number of devices
/// nor on what the recipes shard over the axes of the samples: each gradient is
/// divided into as many slices as there are grains, of which each is summed by
/// itself, and the sums of slices are gathered before they are added.
/// ```mlir
/// %v = graph.reshape %a : tensor<16x4xf32> -> tensor<4x4x4xf32>  // 4 grains
/// %w = spmd.constrain %v  // sharded over "dp" if %a is
/// %r = graph.reduce sum (%w * %w) {dims = 2, graph.ordered}
/// %s = graph.reduce sum %r {dims = 1, graph.ordered}             // 4 sums
/// %t = spmd.constrain %s  // replicated
/// %n = graph.sqrt (graph.reduce sum %t {dims = 0, graph.ordered})
/// ```
/// A gradient without a divisible dimension is gathered.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_DECOMPOSEGLOBALNORM_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_DECOMPOSEGLOBALNORM_H

#include "Annotator.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"

namespace cleave::spmd {

/// Decomposes all global norms of a module, in two phases around the recipes.
class GlobalNormDecomposition {
public:
  /// Replaces the operands of each norm by their sums of squares. `grains` is
  /// the number of slices of a gradient that are summed by themselves, or 0.
  GlobalNormDecomposition(mlir::ModuleOp module, int64_t grains);
  /// Replaces each norm by the root of the sum of its operands. Call after the
  /// recipes have annotated the shardings of gradients.
  /// Without a mesh `annotator` is null, and there are grains.
  void finish(Annotator *annotator);

private:
  struct Norm {
    graph::GlobalNormOp op;
    /// The sum of squares of each tensor, and the tensor.
    llvm::SmallVector<std::pair<mlir::Value, mlir::Value>> squares;
  };
  void replace(Norm &norm, mlir::Value total);

  int64_t grains;
  llvm::SmallVector<Norm, 1> norms;
};

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_DECOMPOSEGLOBALNORM_H
