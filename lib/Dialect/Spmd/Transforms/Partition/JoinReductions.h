//===- JoinReductions.h - One reduction of a sum ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_PARTITION_JOINREDUCTIONS_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_PARTITION_JOINREDUCTIONS_H

namespace mlir {
class Block;
class RewriterBase;
} // namespace mlir

namespace cleave::spmd {

/// A sum of values that are summed over the same ranks becomes one such sum of
/// the sum of their terms: less is sent. Values of several seed indices are not
/// joined, since terms would be kept in place of their sums.
void joinReductions(mlir::Block &body, mlir::RewriterBase &rewriter);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_PARTITION_JOINREDUCTIONS_H
