//===- Views.h - Values as views of buffers ---------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_EXEC_IR_VIEWS_H
#define CLEAVE_DIALECT_EXEC_IR_VIEWS_H

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"
#include "mlir/IR/Builders.h"

namespace cleave::exec {

using graph::tensorTypeOf;

/// The value of whose memory `value` is a view.
mlir::Value rootOf(mlir::Value value);

/// `value` as a tensor with the shape of `type`, addressed by `layout` if
/// `value` is dense. Null if the layout of `value` does not permit it.
mlir::Value viewOf(mlir::OpBuilder &builder, mlir::Location loc,
                   mlir::Value value, mlir::RankedTensorType type,
                   const Strided &layout);

/// `value`, or a view of it, with exactly `type`, in the same buffer.
mlir::Value viewAs(mlir::OpBuilder &builder, mlir::Location loc,
                   mlir::Value value, mlir::RankedTensorType type);

/// `value` in another shape; copied first if its layout demands that.
mlir::Value reshapeOf(mlir::OpBuilder &builder, mlir::Location loc,
                      mlir::Value value, llvm::ArrayRef<int64_t> shape);

/// `value` with permuted dimensions: a view.
mlir::Value transposeOf(mlir::OpBuilder &builder, mlir::Location loc,
                        mlir::Value value, llvm::ArrayRef<int64_t> permutation);

/// Rows `[start, start + count)` of dimension 0: a view.
mlir::Value rowsOf(mlir::OpBuilder &builder, mlir::Location loc,
                   mlir::Value value, int64_t start, int64_t count);

/// `value`, or a dense copy of it.
mlir::Value denseOf(mlir::OpBuilder &builder, mlir::Location loc,
                    mlir::Value value);

/// Replaces `old`, which is dense, by `value`, which may have any layout: views
/// of `old` follow; readers that need a dense value get a copy.
void replaceDense(mlir::OpBuilder &builder, mlir::Value old, mlir::Value value);

} // namespace cleave::exec

#endif // CLEAVE_DIALECT_EXEC_IR_VIEWS_H
