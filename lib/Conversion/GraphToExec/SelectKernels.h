//===- SelectKernels.h - Patterns of --exec-select-kernels ------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_CONVERSION_GRAPHTOEXEC_SELECTKERNELS_H
#define CLEAVE_LIB_CONVERSION_GRAPHTOEXEC_SELECTKERNELS_H

#include "cleave/Dialect/Exec/IR/Views.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/PatternMatch.h"

namespace cleave::exec {

/// `value` with elements of the type `element`, dense where that is another.
mlir::Value castTo(mlir::OpBuilder &builder, mlir::Location loc,
                   mlir::Value value, mlir::Type element);

/// What the library of products can do.
struct ProductForms {
  /// It multiplies f16 as it is and rounds sums of products of 16 bits, with a
  /// bias: that of a GPU.
  bool in16Bits = false;
  /// It multiplies rows and columns of 8-bit floats, 16 bytes at a time.
  bool in8Bits = false;
};

/// The product of two values by an equation, summed in f32, or a located
/// error. It is f32, or, if it may be `rounded` and `forms` can, of the type of
/// the two if that has 16 bits.
mlir::Value contract(mlir::OpBuilder &builder, mlir::Operation *op,
                     llvm::StringRef equation, mlir::Value lhs, mlir::Value rhs,
                     const ProductForms &forms, bool rounded = false);

/// Ops whose result is computed by a kernel made by `--exec-fuse`: they can
/// absorb element-wise ops on their operands.
bool isFusible(mlir::Operation *op);

void populateSelectCheck(mlir::RewritePatternSet &patterns);
void populateSelectContract(mlir::RewritePatternSet &patterns,
                            ProductForms forms);
void populateSelectAttention(mlir::RewritePatternSet &patterns);
void populateSelectHeadLoss(mlir::RewritePatternSet &patterns,
                            int64_t chunkBytes, ProductForms forms);
void populateSelectOrthonormalize(mlir::RewritePatternSet &patterns);
void populateSelectTopK(mlir::RewritePatternSet &patterns);
void populateSelectGrouped(mlir::RewritePatternSet &patterns);
/// What products do before they round; to be applied after the others.
void populateSelectEpilogues(mlir::RewritePatternSet &patterns);
/// Sums that become accumulating commands; to be applied after the others.
void populateAccumulate(mlir::RewritePatternSet &patterns);

} // namespace cleave::exec

#endif // CLEAVE_LIB_CONVERSION_GRAPHTOEXEC_SELECTKERNELS_H
