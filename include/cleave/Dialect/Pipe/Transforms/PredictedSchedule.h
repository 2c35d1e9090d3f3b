//===- PredictedSchedule.h - A schedule and its simulation ------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_PIPE_TRANSFORMS_PREDICTEDSCHEDULE_H
#define CLEAVE_DIALECT_PIPE_TRANSFORMS_PREDICTEDSCHEDULE_H

#include "cleave/Dialect/Pipe/Transforms/Costs.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Scheduling/Timeline/ScheduleFacts.h"

namespace cleave::pipe {

/// The source of the costs of a schedule.
struct CostSource {
  /// Rates of the machine, see `machines::MachineModel::parse`.
  std::string machine;
  /// Costs of parts measured in a run, which replace estimates (see
  /// `scheduling::MeasuredCosts`), and the name of the run for messages.
  std::string measuredCosts, measuredFrom;
};

/// The simulated schedule of one program in the scheduled phase.
struct PredictedSchedule {
  /// Simulates the entry that trains, or the first one; on failure reports why.
  /// The program is null if there is none.
  static llvm::FailureOr<PredictedSchedule> of(mlir::ModuleOp module,
                                               const CostSource &source);

  ProgramOp program;
  spmd::Mesh mesh;
  MachineModel machine;
  Schedule schedule;
  StageMap map;
  std::vector<PartInfo> parts;
  /// The ops of `parts`, in the same order.
  std::vector<InvokeOp> invokes;
  Costs costs;
  /// The run in which costs were measured; empty for estimates.
  std::string measuredFrom;
  scheduling::Simulation simulation;

  /// The name of the schedule.
  std::string name() const;
  /// The number of stages.
  int64_t stages() const;
};

/// What `known`, which has a program, costs.
scheduling::ScheduleFacts findScheduleFacts(const PredictedSchedule &known);

} // namespace cleave::pipe

#endif // CLEAVE_DIALECT_PIPE_TRANSFORMS_PREDICTEDSCHEDULE_H
