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
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_DECOMPOSEGLOBALNORM_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_DECOMPOSEGLOBALNORM_H

#include "Annotator.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"

namespace cleave::spmd {

/// Decomposes all global norms of a module, in two phases around the recipes.
class GlobalNormDecomposition {
public:
  /// Replaces the operands of each norm by their sums of squares.
  explicit GlobalNormDecomposition(mlir::ModuleOp module);
  /// Replaces each norm by the root of the sum of its operands. Call after the
  /// recipes have annotated the shardings of gradients.
  void finish(Annotator &annotator);

private:
  struct Norm {
    graph::GlobalNormOp op;
    /// The sum of squares of each tensor, and the tensor.
    llvm::SmallVector<std::pair<mlir::Value, mlir::Value>> squares;
  };
  llvm::SmallVector<Norm, 1> norms;
};

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_DECOMPOSEGLOBALNORM_H
