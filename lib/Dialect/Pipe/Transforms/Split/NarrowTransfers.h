//===- NarrowTransfers.h - Gradients between stages in 16 bits --*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A gradient is sent to the stage before in the type of the activations that
/// came from there, as the gradient of a 16-bit activation is of 16 bits in
/// autocast. Sums that are sent stay as they are.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_NARROWTRANSFERS_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_NARROWTRANSFERS_H

#include "Stages.h"

namespace cleave::pipe {

/// Rewrites `entry` and updates `flow` and `stages`. Returns the number of
/// values that are rounded, or failure if the analysis of the flow fails
/// afterwards.
llvm::FailureOr<int64_t> narrowTransfers(mlir::func::FuncOp entry, Flow &flow,
                                         Stages &stages);

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_NARROWTRANSFERS_H
