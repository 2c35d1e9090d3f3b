//===- PrintCuda.h - Kernels as CUDA C++ ------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TARGET_CUDA_PRINTCUDA_H
#define CLEAVE_TARGET_CUDA_PRINTCUDA_H

#include "cleave/Executable/Format/Program.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/StringMap.h"
#include <string>

namespace cleave {

/// By function.
using LaunchShapes = llvm::StringMap<runtime::LaunchShape>;

/// Bytes of shared memory that a block can have on the GPUs of any architecture
/// of data centres from sm_90 on.
constexpr int64_t kSharedBytes = 227 << 10;

/// All kernels of `module` as CUDA C++ for devices from sm_80 on, one `extern
/// "C" __global__` function each, `cleave_kernel_` and its name, and a second
/// one for a kernel of two stages, `cleave_finish_` and its name: names such as
/// `norm` belong to the C library. What launches of 72 uses run has the names
/// `cleave_kernel72_` and `cleave_finish72_`. A comment before each gives its
/// launch parameters, which are also added to `launches`. The text must be
/// compiled with
/// `-fmad=false`: multiply-adds are contracted only where written. A row of
/// memory that several passes read stays in registers, or in up to
/// `sharedBytes` of shared memory, or is read again.
llvm::FailureOr<std::string> printCuda(mlir::ModuleOp module,
                                       LaunchShapes &launches,
                                       int64_t sharedBytes = kSharedBytes);

} // namespace cleave

#endif // CLEAVE_TARGET_CUDA_PRINTCUDA_H
