//===- CudaKernels.cpp - Generated text, as C++ ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Emulation.h"

#include "CudaKernels.inc"
