//===- ProgramIO.h - Reading and checking programs --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Reads and writes the command table as JSON, and checks it before it is
/// executed: a program that passes `validate` cannot make the executor access
/// memory outside of the arena (except through generated kernels).
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_FORMAT_PROGRAMIO_H
#define CLEAVE_EXECUTABLE_FORMAT_PROGRAMIO_H

#include "cleave/Executable/Format/Program.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"

namespace cleave::runtime {

/// "f32" and so on.
llvm::StringRef dtypeName(DType type);
/// "parameter", "state", ...
llvm::StringRef roleName(Role role);
/// "contraction", "attention", "row-wise", "optimizer", "communication".
llvm::StringRef timeClassName(TimeClass timeClass);
/// "all-reduce", "all-gather", ...
llvm::StringRef collectiveName(CollectiveKind kind);
/// "[2, 3]".
std::string shapeText(const std::vector<int64_t> &shape);

/// The program as JSON; fields with their default value are left out.
std::string toJSON(const Program &program);

/// The programs of all pipeline positions: a list, if there are several.
std::string toJSON(llvm::ArrayRef<Program> positions);

/// Reads the output of `toJSON`. The result is not validated.
llvm::Expected<Program> parseProgram(llvm::StringRef json);
llvm::Expected<std::vector<Program>> parsePrograms(llvm::StringRef json);

/// Checks everything that the executor relies on.
llvm::Error validate(const Program &program);
/// Also checks that they are the programs of the positions of one mesh.
llvm::Error validate(llvm::ArrayRef<Program> positions);

/// An error with the text `message` only.
llvm::Error makeError(const llvm::Twine &message);

} // namespace cleave::runtime

#endif // CLEAVE_EXECUTABLE_FORMAT_PROGRAMIO_H
