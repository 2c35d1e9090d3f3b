//===- PlanPhases.h - Phases, with decisions --------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PLANNING_PLANPHASES_H
#define CLEAVE_PLANNING_PLANPHASES_H

#include "cleave/Pipelines/Compile.h"
#include <functional>

namespace cleave {

/// Takes `module` from the model phase to `last`, one phase after another, and
/// makes the choices that options leave to planning; calls `after` (which may
/// be null) when each is reached.
llvm::LogicalResult
runPhases(mlir::ModuleOp module, Phase last, const CompileOptions &options,
          const std::function<void(Phase, mlir::ModuleOp)> &after);

/// Adds the prediction that `options` ask for to the report of `compiled`, a
/// program of `module`.
void addPrediction(mlir::ModuleOp module, const CompileOptions &options,
                   CompiledProgram &compiled);

} // namespace cleave

#endif // CLEAVE_PLANNING_PLANPHASES_H
