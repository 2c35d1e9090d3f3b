//===- MaskedExperts.h - Experts behind matmuls with masks ------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Experts to which matmuls with masks send tokens, or that see every token:
/// their class of dimensions is that of the router as well, which is
/// replicated.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_MASKEDEXPERTS_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_MASKEDEXPERTS_H

#include "Annotator.h"

namespace cleave::spmd {

/// Shards these experts of `function` over `axis`: their weights, and what
/// matmuls with them read and compute. The axis is `folded` if no samples are
/// sharded over it. Returns whether there are any; reports a number of experts
/// that the axis does not divide.
llvm::FailureOr<bool> splitMaskedExperts(Annotator &annotator,
                                         mlir::func::FuncOp function,
                                         llvm::StringRef axis, bool folded);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_MASKEDEXPERTS_H
