//===- PrintCuda.h - Kernels as CUDA C++ ------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TARGET_CUDA_PRINTCUDA_H
#define CLEAVE_TARGET_CUDA_PRINTCUDA_H

#include "cleave/Runtime/Core/Program.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/StringMap.h"
#include <string>

namespace cleave {

/// By function.
using LaunchShapes = llvm::StringMap<runtime::LaunchShape>;

/// All kernels of `module` as CUDA C++ for devices from sm_90 on, one `extern
/// "C" __global__` function each, `cleave_kernel_` and its name, and a second
/// one for a kernel of two stages, `cleave_finish_` and its name: names such as
/// `norm` belong to the C library. A comment before each gives its launch
/// parameters, which are also added to `launches`. The text must be compiled with
/// `-fmad=false`: multiply-adds are contracted only where written.
llvm::FailureOr<std::string> printCuda(mlir::ModuleOp module,
                                       LaunchShapes &launches);

} // namespace cleave

#endif // CLEAVE_TARGET_CUDA_PRINTCUDA_H
