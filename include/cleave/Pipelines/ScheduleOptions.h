//===- ScheduleOptions.h - Choosing and showing the schedule ----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Options of schedules, which `cleave-compile` and the Python module share.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PIPELINES_SCHEDULEOPTIONS_H
#define CLEAVE_PIPELINES_SCHEDULEOPTIONS_H

#include "cleave/Pipelines/Phases.h"
#include "cleave/Reports/Reports.h"
#include "cleave/Scheduling/Timeline/Timeline.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/Error.h"

namespace cleave {

/// How many stages a position of the pipeline has, whether backward is split,
/// whether each micro-batch has its own update, and more: what `options` say
/// or, where they do not, what their schedule needs.
struct PipelineShape {
  int64_t chunks = 1;
  /// The position of each stage, as `scheduling::StageMap` names it.
  llvm::StringRef map = "modular";
  bool splitBackward = false;
  bool asynchronous = false;
  /// A schedule written by hand has parts that gather parameters once.
  bool gathersOnce = false;
};
PipelineShape pipelineShape(const PhaseOptions &options);

/// The size of the axis "pp" of a mesh as a person writes it; nothing without
/// that axis, or where the mesh is wrong, which is said where it is made.
std::optional<int64_t> pipelineSize(llvm::StringRef mesh);

/// The stages of the axis "pp"; 1 without it.
int64_t countStages(const PhaseOptions &options);

/// Reads a trace, of `cleave-run --trace` or of the form that `writeSchedule`
/// writes, for its `measured`; and what parts took in it, for
/// `PhaseOptions::measuredCosts`. An error names the file.
llvm::Expected<scheduling::Timeline> readMeasuredTimeline(llvm::StringRef path);
llvm::Expected<std::string> readMeasuredCosts(llvm::StringRef path);

/// Returns rates in the form of `machines::MachineModel::parse`. `text` has
/// that form, or it is the path of a file that has a rate on each line, and
/// comments that begin with `#`.
llvm::Expected<std::string> readMachine(llvm::StringRef text);

/// Where the costs of a schedule come from.
inline pipe::CostSource costSource(const PhaseOptions &options) {
  return {options.machine, options.measuredCosts, options.measuredFrom};
}

} // namespace cleave

#endif // CLEAVE_PIPELINES_SCHEDULEOPTIONS_H
