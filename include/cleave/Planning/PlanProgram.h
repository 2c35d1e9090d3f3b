//===- PlanProgram.h - Programs and their memory ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PLANNING_PLANPROGRAM_H
#define CLEAVE_PLANNING_PLANPROGRAM_H

#include "cleave/Executable/Format/MemoryPlan.h"
#include "cleave/Pipelines/Compile.h"

namespace cleave {

/// The program of each position of the pipeline, without kernels, and the
/// memory that it needs.
struct PlannedProgram {
  std::vector<runtime::Program> positions;
  runtime::MemoryPlan memory;
};

/// Returns the program of a module in the executable phase.
llvm::FailureOr<PlannedProgram> planProgram(mlir::ModuleOp module,
                                            const CompileOptions &options);

/// The memory of the programs of `module`, which is in the executable phase.
runtime::MemoryPlan findMemory(mlir::ModuleOp module,
                               llvm::ArrayRef<runtime::Program> programs);

/// Why the program needs more memory than the limit; empty if it does not.
std::string checkLimit(const runtime::MemoryPlan &memory,
                       const CompileOptions &options);

} // namespace cleave

#endif // CLEAVE_PLANNING_PLANPROGRAM_H
