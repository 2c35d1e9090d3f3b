//===- PartFunctions.h - The functions of a program's parts -----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_PIPE_IR_PARTFUNCTIONS_H
#define CLEAVE_DIALECT_PIPE_IR_PARTFUNCTIONS_H

#include "cleave/Dialect/Pipe/IR/PipeOps.h"

namespace cleave::pipe {

/// Verifies that each part of `program` has a function of one block that
/// nothing else in the module calls, so that a pass may change the function of
/// a part. Emits an error otherwise.
mlir::LogicalResult verifyPartFunctions(ProgramOp program);

} // namespace cleave::pipe

#endif // CLEAVE_DIALECT_PIPE_IR_PARTFUNCTIONS_H
