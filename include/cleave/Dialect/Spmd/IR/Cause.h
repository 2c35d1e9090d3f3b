//===- Cause.h - Why a movement is there ------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A movement carries the annotation that caused it in its location, which
/// survives rewrites and keeps no two equal movements apart.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_CAUSE_H
#define CLEAVE_DIALECT_SPMD_IR_CAUSE_H

#include "mlir/IR/Location.h"

namespace cleave::spmd {

/// `loc` with a cause: `"up_proj.weight" lies in parts over "tp"`.
mlir::Location withCause(mlir::Location loc, llvm::StringRef cause);
/// The cause in `loc`; empty where there is none.
llvm::StringRef causeOf(mlir::Location loc);

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_IR_CAUSE_H
