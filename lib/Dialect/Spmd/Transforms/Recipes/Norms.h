//===- Norms.h - Norms of tensors that lie in parts -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The 2-norm of all gradients is no sum of norms of shards, but its square is
/// a sum over tensors of sums of squares, which shards give summands of.
/// ```mlir
/// %n = graph.global_norm %a, %b
/// // becomes
/// %s = graph.reduce sum (%a * %a)
/// %t = graph.reduce sum (%b * %b)
/// %n = graph.sqrt (%s + %t)
/// ```
/// Tensors that lie alike are summed up first: one number then crosses each
/// group of devices.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_NORMS_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_NORMS_H

#include "Annotator.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"

namespace cleave::spmd {

class Norms {
public:
  /// Puts sums of squares in the place of each norm's operands.
  explicit Norms(mlir::ModuleOp module);
  /// Makes the norms of them, when it is known how gradients lie.
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

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_NORMS_H
