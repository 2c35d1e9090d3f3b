//===- TensorFile.h - Named tensors in a file -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_INTERPRETER_TENSORFILE_H
#define CLEAVE_INTERPRETER_TENSORFILE_H

#include "cleave/Interpreter/Interpreter.h"

namespace cleave {

/// Reads the tensors of a safetensors file. Returns nothing and sets `error`,
/// which names the file, where it is not one.
std::optional<NamedTensors> readTensorFile(llvm::StringRef path,
                                           mlir::MLIRContext *context,
                                           std::string &error);

/// Writes `tensors` as a safetensors file: floats as f64 under `Exact`, else
/// in their own type; integers in their own type. Returns what went wrong, or
/// an empty string; a file that could not be finished is removed.
std::string writeTensorFile(llvm::StringRef path, const NamedTensors &tensors,
                            Precision precision);

} // namespace cleave

#endif // CLEAVE_INTERPRETER_TENSORFILE_H
