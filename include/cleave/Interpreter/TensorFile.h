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

/// Reads the tensors of what `WeightFiles::open` takes. On an error returns
/// nothing and sets `error`, which names the file.
std::optional<NamedTensors> readTensorFile(llvm::StringRef path,
                                           mlir::MLIRContext *context,
                                           std::string &error);

/// Writes `tensors` as a safetensors file: floats as f64 under `Exact`, else in
/// their own type; integers in their own type. Returns an error message, or an
/// empty string; an unfinished file is removed.
std::string writeTensorFile(llvm::StringRef path, const NamedTensors &tensors,
                            Precision precision);

} // namespace cleave

#endif // CLEAVE_INTERPRETER_TENSORFILE_H
