//===- Sequence.h - Splitting along the sequence ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_SEQUENCE_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_SEQUENCE_H

#include "Annotator.h"
#include "llvm/ADT/DenseSet.h"

namespace cleave::spmd {

/// Attention, forward and backward, by the work that it is.
bool isAttention(mlir::Operation *op);

/// Numbers of classes of dimensions.
using SequenceClasses = llvm::SmallDenseSet<unsigned>;

/// The classes that operands of attention have.
SequenceClasses sequenceClasses(const DimensionClasses &classes,
                                mlir::func::FuncOp function);

/// Splits inputs of `function` over `axis` along dimensions of `sequences` that
/// hold no samples. Returns whether there are any; reports a size that does not
/// divide.
llvm::FailureOr<bool> splitInputs(Annotator &annotator,
                                  mlir::func::FuncOp function,
                                  const SequenceClasses &sequences,
                                  llvm::StringRef axis);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_SEQUENCE_H
