//===- Slices.h - The ops that depend on others -----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Dependence between the ops of one block. An op depends on the ops that make
/// its operands and on those that these depend on. A caller can leave out
/// operands, such as those of which only the type is read (`reads`), and ops
/// through which a dependence does not pass (`passes`).
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_ANALYSIS_SLICES_H
#define CLEAVE_DIALECT_GRAPH_ANALYSIS_SLICES_H

#include "mlir/IR/Block.h"
#include "mlir/IR/Operation.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/SetVector.h"

namespace cleave::graph {

/// Which dependences count. Null functions hold for all.
struct SliceOptions {
  /// Whether an op depends on the value of its operand.
  llvm::function_ref<bool(mlir::OpOperand &)> reads = nullptr;
  /// Whether a slice goes on after it has reached this op.
  llvm::function_ref<bool(mlir::Operation *)> passes = nullptr;
};

using OpSlice = llvm::SetVector<mlir::Operation *>;

/// The ops that depend on `value`, in no particular order.
OpSlice forwardSlice(mlir::Value value, SliceOptions options = {});

/// The ops of `body` for which `begins` holds and those that depend on one, in
/// order, without the terminator.
OpSlice forwardSlice(mlir::Block &body,
                     llvm::function_ref<bool(mlir::Operation *)> begins,
                     SliceOptions options = {});

/// The values of `body` for which `begins` holds and the results of the ops
/// that depend on one.
llvm::DenseSet<mlir::Value>
dependentValues(mlir::Block &body,
                llvm::function_ref<bool(mlir::Value)> begins);

/// The ops that `value` depends on, in no particular order.
OpSlice backwardSlice(mlir::Value value, SliceOptions options = {});

/// The ops that `ops` depend on, in no particular order. One of `ops` is among
/// them only if another one depends on it.
OpSlice backwardSlice(llvm::ArrayRef<mlir::Operation *> ops,
                      SliceOptions options = {});

/// Whether `op` is, or depends on, `source`, an op of the same block.
bool dependsOn(mlir::Operation *op, mlir::Operation *source,
               llvm::function_ref<bool(mlir::OpOperand &)> reads = nullptr);

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_ANALYSIS_SLICES_H
