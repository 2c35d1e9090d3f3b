//===- PlanFile.h - Plans in files ------------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A plan file has a mesh and what is sharded over it, as JSON:
///
///     {"mesh": "dp=2,tp=2", "plan": "megatron-sp,zero1"}
///
/// Its name ends with `.plan`, and stands for both options in the place of a
/// plan, at every entrance.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PIPELINES_PLANFILE_H
#define CLEAVE_PIPELINES_PLANFILE_H

#include "cleave/Pipelines/Compile.h"

namespace cleave {

/// Whether a plan is the name of a file.
bool isPlanFile(llvm::StringRef plan);
/// Replaces a plan that is the name of a file by what is in it. An error if it
/// cannot be read, or has another mesh than was given.
llvm::Error readPlanFile(CompileOptions &options);
/// The mesh and the plan of `options` as the text of such a file.
std::string writePlan(const CompileOptions &options);

} // namespace cleave

#endif // CLEAVE_PIPELINES_PLANFILE_H
