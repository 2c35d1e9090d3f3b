//===- MeasureMachine.h - The rates of this machine -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PLANNING_MEASUREMACHINE_H
#define CLEAVE_PLANNING_MEASUREMACHINE_H

#include "cleave/Pipelines/Compile.h"

namespace cleave {

/// Measures the rates of this machine by training steps of `model`, a module in
/// the model phase with random weights and inputs of zeros, on
/// `options.phases.threads` threads: in f32, in bf16, and on two ranks that
/// share the threads. The rate of a class of ops is the work that the cost
/// model counts for it, divided by the time of its commands in the fastest of
/// several steps. What cannot be measured with this model is left out. Returns
/// a file for `readMachine`.
llvm::Expected<std::string> measureMachine(mlir::ModuleOp model,
                                           const CompileOptions &options);

} // namespace cleave

#endif // CLEAVE_PLANNING_MEASUREMACHINE_H
