//===- Cause.h - The annotation behind a collective -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A collective carries the annotation that caused it in its location. A
/// location survives rewrites, and does not prevent merging equal collectives.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_CAUSE_H
#define CLEAVE_DIALECT_SPMD_IR_CAUSE_H

#include "mlir/IR/Location.h"

namespace cleave::spmd {

/// Returns `loc` with a cause, such as `"up_proj.weight" is sharded over "tp"`.
mlir::Location withCause(mlir::Location loc, llvm::StringRef cause);
/// Returns the cause in `loc`; empty without one.
llvm::StringRef causeOf(mlir::Location loc);

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_IR_CAUSE_H
