//===- Driver.h - The functions of the CUDA driver --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_CUDA_LIBRARIES_DRIVER_H
#define CLEAVE_LIB_RUNTIME_CUDA_LIBRARIES_DRIVER_H

#include "llvm/ADT/Twine.h"
#include "llvm/Support/Error.h"

#include <cuda.h>

namespace cleave::runtime::cuda {

/// The value of a variable; empty if it is not set.
llvm::StringRef environment(const char *name);

/// Every function of the driver that is used.
#define CLEAVE_CUDA_FUNCTIONS(F)                                               \
  F(cuCtxSetCurrent)                                                           \
  F(cuDeviceGet)                                                               \
  F(cuDeviceGetAttribute)                                                      \
  F(cuDeviceGetCount)                                                          \
  F(cuDeviceGetName)                                                           \
  F(cuDeviceGetUuid)                                                           \
  F(cuDevicePrimaryCtxRelease)                                                 \
  F(cuDevicePrimaryCtxRetain)                                                  \
  F(cuDriverGetVersion)                                                        \
  F(cuEventCreate)                                                             \
  F(cuEventDestroy)                                                            \
  F(cuEventElapsedTime)                                                        \
  F(cuEventQuery)                                                              \
  F(cuEventRecord)                                                             \
  F(cuEventSynchronize)                                                        \
  F(cuFuncSetAttribute)                                                        \
  F(cuGetErrorString)                                                          \
  F(cuGraphDestroy)                                                            \
  F(cuGraphExecDestroy)                                                        \
  F(cuGraphInstantiate)                                                        \
  F(cuGraphLaunch)                                                             \
  F(cuInit)                                                                    \
  F(cuLaunchKernel)                                                            \
  F(cuMemAlloc)                                                                \
  F(cuMemFree)                                                                 \
  F(cuMemFreeHost)                                                             \
  F(cuMemGetInfo)                                                              \
  F(cuMemHostAlloc)                                                            \
  F(cuMemcpyDtoDAsync)                                                         \
  F(cuMemcpyDtoHAsync)                                                         \
  F(cuMemcpyHtoDAsync)                                                         \
  F(cuMemsetD8Async)                                                           \
  F(cuModuleGetFunction)                                                       \
  F(cuModuleLoadData)                                                          \
  F(cuModuleUnload)                                                            \
  F(cuStreamBeginCapture)                                                      \
  F(cuStreamCreate)                                                            \
  F(cuStreamDestroy)                                                           \
  F(cuStreamEndCapture)                                                        \
  F(cuStreamQuery)                                                             \
  F(cuStreamSynchronize)                                                       \
  F(cuStreamWaitEvent)

/// The driver, opened at run time: a program that links it does not start
/// without one.
struct Driver {
#define CLEAVE_DECLARE(name) decltype(&::name) name = nullptr;
  CLEAVE_CUDA_FUNCTIONS(CLEAVE_DECLARE)
#undef CLEAVE_DECLARE

  /// The driver of this process, which is opened and started once.
  static llvm::Expected<const Driver *> get();

  /// The error of a call that has returned `code` while it did `what`.
  llvm::Error check(CUresult code, const llvm::Twine &what) const;
};

} // namespace cleave::runtime::cuda

#endif // CLEAVE_LIB_RUNTIME_CUDA_LIBRARIES_DRIVER_H
