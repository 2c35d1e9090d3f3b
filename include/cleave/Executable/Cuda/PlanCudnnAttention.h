//===- PlanCudnnAttention.h - What cuDNN runs, and its memory ------------*- C++
//-*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Which attention commands cuDNN's fused attention computes, and how much
/// memory it needs for them. Only plans, without cuDNN and without a device, so
/// that an artifact does not depend on what is installed where it is compiled.
/// When a program is loaded, cuDNN is asked; a command for which it needs more
/// than was planned is run by the generated kernels.
///
/// The figures are those of cuDNN 9.24 on devices of capability 8.x, 9.0 and
/// 10.x; test/fake_cuda/CudnnTest.cpp compares them with cuDNN's own.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_CUDA_PLANCUDNNATTENTION_H
#define CLEAVE_EXECUTABLE_CUDA_PLANCUDNNATTENTION_H

#include "cleave/Executable/Format/Program.h"
#include "llvm/ADT/StringRef.h"

namespace cleave::runtime::cuda {

/// The most memory that is planned for cuDNN. An attention that needs more is
/// computed in several calls, of some of its samples each.
inline constexpr int64_t kLargestCudnnBytes = int64_t(1) << 30;

/// Why cuDNN does not compute an attention command on devices of an
/// `architecture` such as "sm_90"; empty if it does.
std::string cudnnRefusal(const Command &command, llvm::StringRef architecture);

/// Bytes of memory that cuDNN needs for `samples` samples of an attention
/// command that it computes.
int64_t cudnnBytes(const Command &command, llvm::StringRef architecture,
                   int64_t samples);

/// The number of samples of each call, a divisor of the batch, for which
/// `bytes` are enough; 0 if they are not enough for one.
int64_t cudnnSamples(const Command &command, llvm::StringRef architecture,
                     int64_t bytes);

/// AttentionCommand::libraryBytes of an attention command.
int64_t planCudnnBytes(const Command &command, llvm::StringRef architecture);

} // namespace cleave::runtime::cuda

#endif // CLEAVE_EXECUTABLE_CUDA_PLANCUDNNATTENTION_H
