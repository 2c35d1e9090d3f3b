//===- DecomposeTwoRings.h - Ring attention with two rings ------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_DECOMPOSE_DECOMPOSETWORINGS_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_DECOMPOSE_DECOMPOSETWORINGS_H

#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

namespace cleave::spmd {

/// What the attentions of a module compute for one another.
struct Probabilities {
  /// The probabilities of forward, by the log-sum-exp result of the attention.
  llvm::DenseMap<mlir::Value, mlir::Value> rows;
  /// The gradients of the scores, by these and by the gradient of the output.
  llvm::DenseMap<std::pair<mlir::Value, mlir::Value>, mlir::Value> gradients;
};

/// Replaces the output of `op` by that of two rings over `axis`. The op itself
/// is not erased: its log-sum-exp is the key of `probabilities`, by which
/// backward finds those of forward.
llvm::LogicalResult decomposeIntoTwoRings(graph::AttentionOp op, MeshOp mesh,
                                          llvm::StringRef axis,
                                          Probabilities &probabilities);
llvm::LogicalResult decomposeIntoTwoRings(graph::AttentionGradOp op,
                                          MeshOp mesh, llvm::StringRef axis,
                                          Probabilities &probabilities);
llvm::LogicalResult decomposeIntoTwoRings(graph::AttentionBiasGradOp op,
                                          MeshOp mesh, llvm::StringRef axis,
                                          Probabilities &probabilities);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_DECOMPOSE_DECOMPOSETWORINGS_H
