//===- ProgramTable.h - The command table of a module -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TARGET_PROGRAM_PROGRAMTABLE_H
#define CLEAVE_TARGET_PROGRAM_PROGRAMTABLE_H

#include "cleave/Executable/Format/Program.h"
#include "mlir/IR/BuiltinOps.h"

namespace cleave {

/// The command tables of a module after `--exec-plan-memory`, one for each
/// pipeline position, or a located error; each exchange is awaited where it
/// begins. The caller sets `cpu`, `vectorBits` and `metadata`.
llvm::FailureOr<std::vector<runtime::Program>>
translateToPrograms(mlir::ModuleOp module);

/// Whether actions that programs repeat without writing them out can continue
/// in the memory of those that are written out, after `--exec-plan-memory`. If
/// not, compile again with every action written out.
bool rowsRepeat(mlir::ModuleOp module);

} // namespace cleave

#endif // CLEAVE_TARGET_PROGRAM_PROGRAMTABLE_H
