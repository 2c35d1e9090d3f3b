//===- CompileCuda.h - CUDA C++ as device code ------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TARGET_CUDA_COMPILECUDA_H
#define CLEAVE_TARGET_CUDA_COMPILECUDA_H

#include "cleave/Executable/Format/Program.h"
#include "cleave/Target/CUDA/PrintCuda.h"
#include "llvm/Support/Error.h"

namespace cleave {

/// What is wrong with the name of an architecture, such as "sm_90"; else "".
std::string checkArchitecture(llvm::StringRef architecture);

/// The multiprocessors of the GPUs of an architecture, by which work is
/// divided; there are some with fewer.
int64_t multiprocessorsOf(llvm::StringRef architecture);
/// Whether a GPU of `architecture` multiplies 8-bit floats: from sm_89 on.
bool multipliesFloat8(llvm::StringRef architecture);

/// Bytes of shared memory that a block can have on the GPUs of an architecture
/// (CUDA C++ Programming Guide, "Compute Capabilities").
int64_t sharedBytesOf(llvm::StringRef architecture);

/// The kernels of `module`, and those with which a device executes the other
/// commands of `programs`, as CUDA C++ for `architecture`. Writes the launch
/// shapes of kernels to the programs.
llvm::FailureOr<std::string>
printCudaPrograms(mlir::ModuleOp module,
                  llvm::MutableArrayRef<runtime::Program> programs,
                  llvm::StringRef architecture);

/// Code for a GPU: the binary of one architecture, and PTX, of which a driver
/// makes that of later ones.
struct CudaCode {
  std::string cubin, ptx;
};

/// Compiles CUDA C++ for `architecture` by NVRTC, which is opened here: it
/// needs neither a device nor a driver. Fails, with what to do, where it is not
/// installed.
llvm::Expected<CudaCode> compileCuda(llvm::StringRef text,
                                     llvm::StringRef architecture);

/// An object file for the host with the device's code, and the signatures of
/// the kernels of `module`, as an artifact has them.
llvm::Expected<std::string> emitImage(const CudaCode &code,
                                      mlir::ModuleOp module);

} // namespace cleave

#endif // CLEAVE_TARGET_CUDA_COMPILECUDA_H
