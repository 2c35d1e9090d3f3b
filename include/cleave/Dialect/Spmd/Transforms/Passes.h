//===- Passes.h - Passes of the spmd dialect --------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_TRANSFORMS_PASSES_H
#define CLEAVE_DIALECT_SPMD_TRANSFORMS_PASSES_H

#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace cleave::spmd {

#define GEN_PASS_DECL
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_TRANSFORMS_PASSES_H
