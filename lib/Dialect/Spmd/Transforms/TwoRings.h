//===- TwoRings.h - Attention with whole rows of scores ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_TWORINGS_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_TWORINGS_H

#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

namespace cleave::spmd {

/// The probabilities that forward made, by the log-sum-exp that it had in their
/// place.
using Probabilities = llvm::DenseMap<mlir::Value, mlir::Value>;

/// Replaces the results of `op` by those of two rings over `axis`; the op itself
/// stays, unused, and so does its log-sum-exp, which backward knows it by.
llvm::LogicalResult decomposeIntoTwoRings(graph::AttentionOp op, MeshOp mesh,
                                          llvm::StringRef axis,
                                          Probabilities &probabilities);
llvm::LogicalResult decomposeIntoTwoRings(graph::AttentionGradOp op,
                                          MeshOp mesh, llvm::StringRef axis,
                                          Probabilities &probabilities);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_TWORINGS_H
