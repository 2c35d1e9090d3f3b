//===- Passes.h - Passes of the exec dialect --------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_EXEC_TRANSFORMS_PASSES_H
#define CLEAVE_DIALECT_EXEC_TRANSFORMS_PASSES_H

#include "cleave/Dialect/Exec/IR/ExecDialect.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace cleave::exec {

#define GEN_PASS_DECL
#include "cleave/Dialect/Exec/Transforms/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "cleave/Dialect/Exec/Transforms/Passes.h.inc"

} // namespace cleave::exec

#endif // CLEAVE_DIALECT_EXEC_TRANSFORMS_PASSES_H
