//===- CommandKernels.h - Kernels of the other commands ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_TARGET_CUDA_COMMANDKERNELS_H
#define CLEAVE_LIB_TARGET_CUDA_COMMANDKERNELS_H

#include "cleave/Executable/Format/Program.h"
#include "llvm/ADT/ArrayRef.h"
#include <string>

namespace cleave::cuda {

/// The kernels with which a device executes the commands of `programs` that are
/// neither generated kernels nor contractions, as CUDA C++ that follows
/// `deviceFunctions`. Their files are in the folder Kernels.
std::string commandKernels(llvm::ArrayRef<runtime::Program> programs);

} // namespace cleave::cuda

#endif // CLEAVE_LIB_TARGET_CUDA_COMMANDKERNELS_H
