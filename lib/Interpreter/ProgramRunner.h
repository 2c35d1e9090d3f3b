//===- ProgramRunner.h - Executes a program action by action ----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_INTERPRETER_PROGRAMRUNNER_H
#define CLEAVE_LIB_INTERPRETER_PROGRAMRUNNER_H

#include "BlockRunner.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"

namespace cleave {

/// Executes the actions of the program's schedule, in its order. An action may
/// read only results of earlier ones.
llvm::FailureOr<std::vector<TensorRef>>
runProgram(pipe::ProgramOp program, const std::vector<TensorRef> &arguments,
           ReferenceContext &context);

} // namespace cleave

#endif // CLEAVE_LIB_INTERPRETER_PROGRAMRUNNER_H
