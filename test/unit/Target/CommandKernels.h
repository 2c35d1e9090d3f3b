//===- CommandKernels.h - Command kernels on the host -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TEST_UNIT_TARGET_COMMANDKERNELS_H
#define CLEAVE_TEST_UNIT_TARGET_COMMANDKERNELS_H

#include "cleave/Executable/Cuda/CommandLaunches.h"

namespace cleave::testing {

/// Runs a kernel of lib/Target/CUDA/Kernels with emulated blocks; addresses are
/// those of the host. Returns what is wrong with the launch, or "".
std::string emulateLaunch(const runtime::cuda::Launch &launch);

} // namespace cleave::testing

#endif // CLEAVE_TEST_UNIT_TARGET_COMMANDKERNELS_H
