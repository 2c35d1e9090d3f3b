//===- PredictedSchedule.h - A schedule and its simulation ------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_PIPELINES_PREDICTEDSCHEDULE_H
#define CLEAVE_LIB_PIPELINES_PREDICTEDSCHEDULE_H

#include "cleave/Dialect/Pipe/Transforms/Costs.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Pipelines/Schedules.h"
#include "llvm/Support/JSON.h"

namespace cleave {

/// That of one program, in the scheduled phase.
struct PredictedSchedule {
  /// That of the entry that trains, or the first; on failure reports why. The
  /// program is null when there is none.
  static llvm::FailureOr<PredictedSchedule> of(mlir::ModuleOp module,
                                               const PhaseOptions &options);

  pipe::ProgramOp program;
  spmd::Mesh mesh;
  pipe::MachineModel machine;
  pipe::Schedule schedule;
  pipe::StageMap map;
  std::vector<pipe::PartInfo> parts;
  /// Their ops, in the same order.
  std::vector<pipe::InvokeOp> invokes;
  pipe::Costs costs;
  /// Where they were measured; empty: they are estimates.
  std::string measuredFrom;
  pipe::Simulation simulation;

  std::string name() const;
  int64_t stages() const;
};

/// What each stage sends each other one, for a micro-batch and for a step,
/// value by value.
llvm::json::Array describeBoundaries(const PredictedSchedule &known);

} // namespace cleave

#endif // CLEAVE_LIB_PIPELINES_PREDICTEDSCHEDULE_H
