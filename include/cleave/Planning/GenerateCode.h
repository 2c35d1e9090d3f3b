//===- GenerateCode.h - From a module to an artifact ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PLANNING_GENERATECODE_H
#define CLEAVE_PLANNING_GENERATECODE_H

#include "cleave/Planning/PlanProgram.h"
#include "cleave/Runtime/Session/Session.h"

namespace cleave {

/// Generates code for the kernels of `planned`, the program of a module in the
/// executable phase.
llvm::FailureOr<CompiledProgram> generateCode(mlir::ModuleOp module,
                                              const CompileOptions &options,
                                              const PlannedProgram &planned);

/// The same, with the program.
llvm::FailureOr<CompiledProgram> generateCode(mlir::ModuleOp module,
                                              const CompileOptions &options);

/// The forms in which generated kernels are printed.
enum class KernelText : uint8_t { LLVM, Cuda };

/// The kernels of a module in the executable phase, as text: for the target
/// "cuda" also those of the other commands.
llvm::FailureOr<std::string> printKernels(mlir::ModuleOp module,
                                          KernelText text,
                                          const CompileOptions &options);

/// Writes `path`, a shared object that `runtime::Session::open` reads; whole or
/// not at all.
llvm::Error writeArtifact(const CompiledProgram &compiled,
                          llvm::StringRef path);

/// Loads the program into this process.
llvm::Expected<std::unique_ptr<runtime::Session>>
openSession(const CompiledProgram &compiled,
            const runtime::SessionOptions &options);

} // namespace cleave

#endif // CLEAVE_PLANNING_GENERATECODE_H
