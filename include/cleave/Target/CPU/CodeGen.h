//===- CodeGen.h - Native code of kernels -----------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

///
/// \file
/// From `exec.kernel` to machine code of an x86-64 processor: an object file, a
/// library in this process, or a shared object that includes the program.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TARGET_CPU_CODEGEN_H
#define CLEAVE_TARGET_CPU_CODEGEN_H

#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <memory>
#include <string>

namespace cleave {

/// The processor that code is generated for.
struct CpuTarget {
  /// The name in clang's form, such as "znver5" or "x86-64-v3".
  std::string cpu;
  /// Width of vectors in bits: 128, 256 or 512.
  int vectorBits = 256;

  /// The processor of this machine.
  static CpuTarget host();
  /// Returns a target for the given name and width; an empty name and a width
  /// of 0 mean the host's, or the width that the named processor has. Fails for
  /// an unknown name or width.
  static llvm::Expected<CpuTarget> get(llvm::StringRef cpu, int vectorBits);
};

/// Relocatable object code of all kernels of `module`. A kernel of two stages
/// becomes two functions.
llvm::FailureOr<std::string> compileKernels(mlir::ModuleOp module,
                                            const CpuTarget &target);

/// Functions that a program calls in the code of another program, with their
/// names there, by its own names.
using BorrowedFunctions = llvm::StringMap<std::string>;

/// The same without the kernels that `lender`, compiled for the same processor,
/// has too: their code there is the same, under other names. Their functions
/// are added to `borrowed`, also the data that describe them.
llvm::FailureOr<std::string> compileKernels(mlir::ModuleOp module,
                                            const CpuTarget &target,
                                            mlir::ModuleOp lender,
                                            BorrowedFunctions &borrowed);

/// The kernels of `module` as LLVM IR text, after optimisation.
llvm::FailureOr<std::string> printLLVM(mlir::ModuleOp module,
                                       const CpuTarget &target);

/// Kernels loaded into this process; the code is unloaded with this object.
class KernelLibrary {
public:
  virtual ~KernelLibrary();
  /// The address of a function, or null.
  virtual void *lookup(llvm::StringRef name) = 0;
};

/// Loads the output of `compileKernels` for this machine.
llvm::Expected<std::unique_ptr<KernelLibrary>>
loadKernels(llvm::StringRef objectBytes);

/// Data that an artifact exports.
struct DataSymbol {
  std::string name, bytes;
};

/// An object file for this machine with those data, each aligned to 16 bytes.
llvm::Expected<std::string> emitData(llvm::ArrayRef<DataSymbol> symbols);

/// Writes a shared object, completely or not at all, that holds the kernels and
/// the program's JSON as `runtime::Artifact::open` expects them.
llvm::Error linkSharedObject(llvm::StringRef objectBytes,
                             llvm::StringRef programJson,
                             llvm::StringRef outputPath);

} // namespace cleave

#endif // CLEAVE_TARGET_CPU_CODEGEN_H
