//===- ValidateCommand.h - Checks of commands -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_EXECUTABLE_FORMAT_VALIDATECOMMAND_H
#define CLEAVE_LIB_EXECUTABLE_FORMAT_VALIDATECOMMAND_H

#include "cleave/Executable/Format/Program.h"
#include "llvm/Support/Error.h"

namespace cleave::runtime {

/// Checks a command of `part`; `where` begins the message.
llvm::Error validateCommand(const Program &program, const Part &part,
                            const Command &command, const std::string &where);

/// Why digits do not belong to the program's mesh, or occur twice in all lists
/// together; "" if they are valid.
std::string digitsProblem(const Program &program,
                          const std::vector<std::vector<Digit>> &lists);

} // namespace cleave::runtime

#endif // CLEAVE_LIB_EXECUTABLE_FORMAT_VALIDATECOMMAND_H
