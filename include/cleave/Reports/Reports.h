//===- Reports.h - What was decided -----------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Reports of the decisions of a compilation, as JSON, as lines of text and as
/// pictures.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_REPORTS_REPORTS_H
#define CLEAVE_REPORTS_REPORTS_H

#include "cleave/Dialect/Pipe/Transforms/PredictedSchedule.h"
#include "cleave/Reports/CostFacts.h"
#include "cleave/Reports/PlanFacts.h"
#include "cleave/Reports/Report.h"
#include "cleave/Scheduling/Timeline/Timeline.h"
#include "mlir/IR/BuiltinOps.h"
#include <optional>
#include <string>
#include <vector>

namespace cleave {

enum class ScheduleFormat : uint8_t { Text, Svg, Trace };
/// Returns the format named "text", "svg" or "perfetto".
std::optional<ScheduleFormat> parseScheduleFormat(llvm::StringRef name);
/// Returns the format for a file's extension: .svg, .json, otherwise text.
ScheduleFormat scheduleFormatOf(llvm::StringRef path);

/// Writes the predicted timeline of one step of the entry that trains (or the
/// only one) of `module`, which is in the scheduled phase, with estimated or
/// measured costs; and below it the timeline `measured`, if it is not null. The
/// text format is a schedule that can be read again, in which everything else
/// is a comment.
llvm::LogicalResult
writeSchedule(llvm::raw_ostream &os, mlir::ModuleOp module,
              const pipe::CostSource &source, ScheduleFormat format,
              const scheduling::Timeline *measured = nullptr);

/// Returns `{"schedule": ...}`: the costs, times, memory and bytes sent of the
/// schedule, by stage, pipeline position and boundary; with `measured`, also
/// the idle times of that timeline. It is null if the module has no program.
llvm::FailureOr<Report>
scheduleReport(mlir::ModuleOp module, const pipe::CostSource &source,
               const scheduling::Timeline *measured = nullptr);

/// What the report of a program says besides its module and its schedule.
struct ProgramFacts {
  runtime::MemoryPlan memory;
  std::optional<RecomputeDecision> recompute;
  std::optional<ExpertBufferDecision> expertBuffer;
  std::optional<machines::Prediction> prediction;
  /// Of a module that trains.
  std::optional<CostFacts> cost;
  std::string target;
  bool checkFinite = true;
  int64_t microBatches = 1;
};

/// Returns the report of a program of `module`, which is in the executable
/// phase: `memory`, `recompute`, `expert_buffer`, `communication`, `cost`,
/// `placement`, `plan`, `prediction`, `schedule` (of `scheduleReport`) and
/// `decisions`, which explain all of it in lines of text.
Report programReport(mlir::ModuleOp module, const ProgramFacts &facts,
                     Report schedule);

/// How much of a report is explained: ten lines; all of it, with what differs
/// in the numbers of layers alone as one line; all of it; the memory of a
/// device on a page; or the cost of the plan beside its closed form.
enum class Detail : uint8_t { Summary, Layers, Full, Memory, Cost };
/// Returns the detail named "summary", "layers", "full", "memory" or "cost".
std::optional<Detail> parseDetail(llvm::StringRef name);

/// Explains the report of a program in lines of text.
std::vector<std::string> explainReport(const Report &report, Detail detail);

/// Returns the memory in use over a step, by kind, as counters for
/// ui.perfetto.dev. A command of the plan takes a microsecond; repeated actions
/// are there once.
std::string memoryTrace(const Report &report);

/// Returns `{"fit": ...}`:
/// ```
/// {"question": "micro_batch" | "devices", "axis": "dp", "limit": n,
///  "batch": n,
///  "tried": [{"mesh": "dp=2", "devices": n, "micro_batches": n, "samples": n,
///             "bytes": n | null, "fits": b, "recompute": "...",
///             "refused": "..."}, ...],
///  "answer": i | null, "flag": "--micro-batches=4",
///  "smallest": i | null, "kinds": {"saved": n, ...}, "advice": ["...", ...]}
/// ```
/// `kinds` is what the smallest plan has at its peak; `advice` is there if
/// nothing fits.
Report fitReport(const FitAnswer &fit);
/// Returns the table and the answer as lines of text.
std::vector<std::string> explainFit(const FitAnswer &fit);

/// Returns the estimate of a step as lines of text.
std::vector<std::string>
explainPrediction(const machines::Prediction &prediction);

} // namespace cleave

#endif // CLEAVE_REPORTS_REPORTS_H
