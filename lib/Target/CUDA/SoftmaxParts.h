//===- SoftmaxParts.h - Passes of a softmax ---------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_TARGET_CUDA_SOFTMAXPARTS_H
#define CLEAVE_LIB_TARGET_CUDA_SOFTMAXPARTS_H

#include "cleave/Dialect/Exec/IR/ExecOps.h"

namespace cleave::cuda {

/// The load that `value` is of, but for a wider type; null if it is another
/// value.
exec::LoadOp loadOf(mlir::Value value);

/// Whether both read the same element of the same memory.
bool readsSame(exec::LoadOp a, exec::LoadOp b);

/// The one reduction of a pass, if it has one of `kind` whose order is free.
exec::ReduceOp onlyReduction(exec::PassOp pass, exec::ReductionKind kind);

/// If the pass is the sum of exp(x - y) for the elements x of a row: x, and y,
/// a value of the row.
std::pair<exec::LoadOp, mlir::Value> exponentialSum(exec::PassOp pass);

} // namespace cleave::cuda

#endif // CLEAVE_LIB_TARGET_CUDA_SOFTMAXPARTS_H
