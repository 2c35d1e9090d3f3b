//===- Passes.h - Conversions to the exec dialect ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_CONVERSION_PASSES_H
#define CLEAVE_CONVERSION_PASSES_H

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace cleave::exec {

#define GEN_PASS_DECL
#include "cleave/Conversion/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "cleave/Conversion/Passes.h.inc"

/// Registers how graph ops that only move data address their operands.
void registerViewLayoutModels(mlir::DialectRegistry &registry);

/// Registers the ops whose value depends only on the micro-batch and the rank.
void registerMicroBatchValueModels(mlir::DialectRegistry &registry);

} // namespace cleave::exec

#endif // CLEAVE_CONVERSION_PASSES_H
