//===- Schedules.h - Choosing and showing the schedule ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// What `cleave-compile` and the Python module have in common of schedules.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PIPELINES_SCHEDULES_H
#define CLEAVE_PIPELINES_SCHEDULES_H

#include "cleave/Dialect/Pipe/IR/Timeline.h"
#include "cleave/Pipelines/Phases.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/JSON.h"

namespace cleave {

/// How many stages a position of the pipeline has, whether backward is split,
/// whether each micro-batch has its own update, and more: what `options` say
/// or, where they do not, what their schedule needs.
struct PipelineShape {
  int64_t chunks = 1;
  bool splitBackward = false;
  bool asynchronous = false;
  /// A schedule written by hand has parts that gather parameters once.
  bool gathersOnce = false;
};
PipelineShape pipelineShape(const PhaseOptions &options);

/// What is wrong with the schedule of `options`, as far as it shows without a
/// model; empty when nothing is. Of one written by hand it says
/// `file:line:column: `.
std::string checkSchedule(const PhaseOptions &options);

enum class ScheduleFormat : uint8_t { Text, Svg, Trace };
/// "text", "svg", "perfetto".
std::optional<ScheduleFormat> parseScheduleFormat(llvm::StringRef name);
/// By the end of a file's name: .svg, .json, or anything else.
ScheduleFormat scheduleFormatOf(llvm::StringRef path);

/// Reads a trace, of `cleave-run --trace` or of the form that `writeSchedule`
/// writes, for `measured` below; and what parts took in it, for
/// `PhaseOptions::measuredCosts`. An error names the file.
llvm::Expected<pipe::Timeline> readMeasuredTimeline(llvm::StringRef path);
llvm::Expected<std::string> readMeasuredCosts(llvm::StringRef path);

/// Writes when each device does what in one step of the entry that trains (or
/// the only one) of `module`, in the scheduled phase, in seconds that are
/// estimated or follow from costs that were measured; and `measured` below it,
/// if it is not null. As text it is a schedule that can be read again: all else
/// is in comments.
llvm::LogicalResult writeSchedule(llvm::raw_ostream &os, mlir::ModuleOp module,
                                  const PhaseOptions &options,
                                  ScheduleFormat format,
                                  const pipe::Timeline *measured = nullptr);

/// The same as facts: costs, times, memory and what is sent, by stage, device
/// and boundary; with `measured`, how long its devices are busy. Null when the
/// module has no program.
llvm::FailureOr<llvm::json::Value>
scheduleReport(mlir::ModuleOp module, const PhaseOptions &options,
               const pipe::Timeline *measured = nullptr);

/// Puts `schedule`, of `scheduleReport`, into the report of an artifact, and
/// what all of it says for people: `decisions`, a line for each.
void completeReport(llvm::json::Object &report, llvm::json::Value schedule);

/// The facts of `scheduleReport` that matter most, as lines for people.
std::vector<std::string> explainSchedule(const llvm::json::Value &report);

} // namespace cleave

#endif // CLEAVE_PIPELINES_SCHEDULES_H
