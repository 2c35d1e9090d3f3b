//===- ScheduleDetails.h - Parts of the report of a schedule ----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_REPORTS_SCHEDULEDETAILS_H
#define CLEAVE_LIB_REPORTS_SCHEDULEDETAILS_H

#include "cleave/Dialect/Pipe/Transforms/PredictedSchedule.h"
#include "llvm/Support/JSON.h"

namespace cleave {

/// Describes the values that each stage sends to each other one, with their
/// bytes for a micro-batch and for a step.
llvm::json::Array describeBoundaries(const pipe::PredictedSchedule &known);

/// Maps the values that hold a parameter to its name: arguments, and updated
/// parameters, which forward reads if updates come first.
llvm::DenseMap<mlir::Value, llvm::StringRef>
parameterNames(const pipe::PredictedSchedule &known);

/// Maps the values of a part that depend on parameters alone, such as gathered
/// parameters, to the names of these parameters; empty if the part has no body.
/// `names` are those of `parameterNames`.
llvm::DenseMap<mlir::Value, std::string>
madeOfParameters(const llvm::DenseMap<mlir::Value, llvm::StringRef> &names,
                 pipe::InvokeOp invoke);

/// Describes the gathers of sharded parameters: the bytes that the program
/// sends, and those that it would send and hold if each parameter were gathered
/// once for a step.
llvm::json::Object describeGathers(const pipe::PredictedSchedule &known);

/// Describes the reductions of values that are accumulated over micro-batches,
/// such as gradients: those in backward of each micro-batch, and those after
/// the last one (R).
llvm::json::Object describeReductions(const pipe::PredictedSchedule &known);

} // namespace cleave

#endif // CLEAVE_LIB_REPORTS_SCHEDULEDETAILS_H
