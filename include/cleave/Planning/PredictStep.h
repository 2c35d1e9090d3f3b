//===- PredictStep.h - An estimate of a step on a GPU -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PLANNING_PREDICTSTEP_H
#define CLEAVE_PLANNING_PREDICTSTEP_H

#include "cleave/Executable/Format/Program.h"
#include "cleave/Machines/Prediction.h"
#include "mlir/IR/BuiltinOps.h"
#include <optional>

namespace cleave {

/// The names of the devices whose steps can be predicted.
llvm::ArrayRef<llvm::StringRef> predictedDevices();

/// The peak of one of these devices in matmuls of 16 bits, in operations per
/// second, as its data sheet has it; nothing of another device.
std::optional<double> peakOperations(llvm::StringRef device);

/// An estimate, without any run, of one training step of `program` on
/// `device`, of its commands: how many launches, operations and bytes they are,
/// and what these take at rates that are stated with it. `labels` sums up
/// commands of one label and kind, as a trace has labels. Collectives are not
/// counted. `module` has the kernels.
machines::Prediction predictStep(mlir::ModuleOp module,
                                 const runtime::Program &program,
                                 llvm::StringRef device);

} // namespace cleave

#endif // CLEAVE_PLANNING_PREDICTSTEP_H
