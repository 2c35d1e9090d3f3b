//===- CheckMemory.h - Checks a plan of memory by running it ----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TESTING_CHECKMEMORY_H
#define CLEAVE_TESTING_CHECKMEMORY_H

#include "mlir/IR/BuiltinOps.h"

namespace cleave {

/// Walks every entry of a module after `--exec-plan-memory`, action by action
/// and command by command, with an arena that holds, in place of each element,
/// the mark of the value that wrote it last. Each operand must find its own
/// value whole where the plan says it lies; so must the entry's results, at
/// the end, and every argument that it does not update. Reports a located error
/// at the first command that would read anything else.
llvm::LogicalResult checkMemory(mlir::ModuleOp module);

} // namespace cleave

#endif // CLEAVE_TESTING_CHECKMEMORY_H
