//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_EXEC_IR_EXECOPS_TD
#define CLEAVE_DIALECT_EXEC_IR_EXECOPS_TD

include "cleave/Dialect/Exec/IR/KernelOps.td"
include "cleave/Dialect/Exec/IR/CommandOps.td"
include "cleave/Dialect/Exec/IR/ProgramOps.td"

#endif // CLEAVE_DIALECT_EXEC_IR_EXECOPS_TD
