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

/// The names of what holds a parameter: an argument, and what is made of it,
/// which forward reads where updates come first.
llvm::DenseMap<mlir::Value, llvm::StringRef>
parameterNames(const PredictedSchedule &known);

/// Of what a part makes of parameters alone, such as gathered ones, and of
/// these themselves, the names; nothing where it has no body.
llvm::DenseMap<mlir::Value, std::string>
madeOfParameters(const PredictedSchedule &known, pipe::InvokeOp invoke);

/// What is sent to have whole parameters (or more of them) where a device holds
/// parts: as the program does it, and if each were gathered once for a step and
/// kept.
llvm::json::Object describeGathers(const PredictedSchedule &known);

/// What backward sends for sums over micro-batches alone, such as gradients:
/// for each of them, and, behind all, once (R).
llvm::json::Object describeReductions(const PredictedSchedule &known);

} // namespace cleave

#endif // CLEAVE_LIB_PIPELINES_PREDICTEDSCHEDULE_H
