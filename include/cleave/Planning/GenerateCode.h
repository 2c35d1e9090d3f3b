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
#include "cleave/Target/CPU/CodeGen.h"

namespace cleave {

/// Generates code for the kernels of `planned`, the program of a module in the
/// executable phase.
llvm::FailureOr<CompiledProgram> generateCode(mlir::ModuleOp module,
                                              const CompileOptions &options,
                                              const PlannedProgram &planned);

/// The same, with the program.
llvm::FailureOr<CompiledProgram> generateCode(mlir::ModuleOp module,
                                              const CompileOptions &options);

/// The same for a CPU, without kernels that `lender`, a module in the
/// executable phase that was compiled for the same processor, has too: see
/// `compileKernels`. Such a program is opened with the library of these.
llvm::FailureOr<CompiledProgram> generateCode(mlir::ModuleOp module,
                                              const CompileOptions &options,
                                              const PlannedProgram &planned,
                                              mlir::ModuleOp lender,
                                              BorrowedFunctions &borrowed);

/// How many kernels of such a module are compiled, and how many are borrowed.
std::pair<int64_t, int64_t> countKernels(mlir::ModuleOp module,
                                         const BorrowedFunctions &borrowed);

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

/// Kernels that are loaded, which programs may have together.
using SharedKernels = std::shared_ptr<KernelLibrary>;

/// The same with the program's kernels, which are loaded already, and those
/// that are borrowed from `lender`; null if none are.
llvm::Expected<std::unique_ptr<runtime::Session>>
openSession(const CompiledProgram &compiled, SharedKernels kernels,
            SharedKernels lender, BorrowedFunctions borrowed,
            const runtime::SessionOptions &options);

} // namespace cleave

#endif // CLEAVE_PLANNING_GENERATECODE_H
