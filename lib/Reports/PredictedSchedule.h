//===- PredictedSchedule.h - A schedule and its simulation ------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_REPORTS_PREDICTEDSCHEDULE_H
#define CLEAVE_LIB_REPORTS_PREDICTEDSCHEDULE_H

#include "cleave/Dialect/Pipe/Transforms/Costs.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Reports/Reports.h"
#include "llvm/Support/JSON.h"

namespace cleave {

/// The simulated schedule of one program in the scheduled phase.
struct PredictedSchedule {
  /// Simulates the entry that trains, or the first one; on failure reports why.
  /// The program is null if there is none.
  static llvm::FailureOr<PredictedSchedule> of(mlir::ModuleOp module,
                                               const CostSource &source);

  pipe::ProgramOp program;
  spmd::Mesh mesh;
  machines::MachineModel machine;
  scheduling::Schedule schedule;
  scheduling::StageMap map;
  std::vector<scheduling::PartInfo> parts;
  /// The ops of `parts`, in the same order.
  std::vector<pipe::InvokeOp> invokes;
  scheduling::Costs costs;
  /// The run in which costs were measured; empty for estimates.
  std::string measuredFrom;
  scheduling::Simulation simulation;

  /// The name of the schedule.
  std::string name() const;
  /// The number of stages.
  int64_t stages() const;
};

/// Describes the values that each stage sends to each other one, with their
/// bytes for a micro-batch and for a step.
llvm::json::Array describeBoundaries(const PredictedSchedule &known);

/// Maps the values that hold a parameter to its name: arguments, and updated
/// parameters, which forward reads if updates come first.
llvm::DenseMap<mlir::Value, llvm::StringRef>
parameterNames(const PredictedSchedule &known);

/// Maps the values of a part that depend on parameters alone, such as gathered
/// parameters, to the names of these parameters; empty if the part has no body.
llvm::DenseMap<mlir::Value, std::string>
madeOfParameters(const PredictedSchedule &known, pipe::InvokeOp invoke);

/// Describes the gathers of sharded parameters: the bytes that the program
/// sends, and those that it would send and hold if each parameter were gathered
/// once for a step.
llvm::json::Object describeGathers(const PredictedSchedule &known);

/// Describes the reductions of values that are accumulated over micro-batches,
/// such as gradients: those in backward of each micro-batch, and those after
/// the last one (R).
llvm::json::Object describeReductions(const PredictedSchedule &known);

} // namespace cleave

#endif // CLEAVE_LIB_REPORTS_PREDICTEDSCHEDULE_H
