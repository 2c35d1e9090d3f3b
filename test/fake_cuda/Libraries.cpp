//===- Libraries.cpp - Code that is loaded and does not run ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Code of a device that a library compiles and loads here, though nothing here
/// can run it: it is taken, and has any kernel that is asked for. A launch of
/// one is refused, since its function is none of the driver's.
///
//===----------------------------------------------------------------------===//

#include "Driver.h"

namespace {
struct Code {
  std::map<std::string, int> kernels;
};
} // namespace

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code,
                                  CUjit_option *, void **, unsigned,
                                  CUlibraryOption *, void **, unsigned) {
  CHECK(library && code);
  *library = reinterpret_cast<CUlibrary>(new Code);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryUnload(CUlibrary library) {
  CHECK(library);
  delete reinterpret_cast<Code *>(library);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library,
                                   const char *name) {
  CHECK(kernel && library && name);
  auto &kernels = reinterpret_cast<Code *>(library)->kernels;
  *kernel = reinterpret_cast<CUkernel>(&kernels[name]);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
  CHECK(function && kernel);
  // Never the address of a function here.
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute, int, CUkernel kernel,
                                     CUdevice) {
  CHECK(kernel);
  return CUDA_SUCCESS;
}
