//===- CheckMemory.h - Checks a memory plan by running it -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TESTING_CHECKMEMORY_H
#define CLEAVE_TESTING_CHECKMEMORY_H

#include "mlir/IR/BuiltinOps.h"

namespace cleave {

/// Runs every entry of a module after `--exec-plan-memory`, action by action
/// and command by command, with an arena that holds, in place of each element,
/// the mark of the value that wrote it last. Each operand, each result of the
/// entry at its end, and every argument that it does not update must have its
/// own marks at its offset. Reports a located error at the first command that
/// would read another value.
llvm::LogicalResult checkMemory(mlir::ModuleOp module);

} // namespace cleave

#endif // CLEAVE_TESTING_CHECKMEMORY_H
