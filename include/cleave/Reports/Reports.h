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

#include "cleave/Scheduling/Timeline/Timeline.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/JSON.h"
#include <optional>
#include <string>
#include <vector>

namespace cleave {

/// Returns the memory plan, for `--report`:
/// ```
/// {"arena_bytes": n, "bytes": {"parameter": n, "state": n, ...},
///  "fixed": [{"bytes", "count", "kind", "name"}, ...],
///  "entries": {"train": {"peak_bytes": n, "lower_bound_bytes": n, "actions":
///  n,
///    "commands": {"contract": n, ...},
///    "kinds_at_peak": {"parameters": n, "saved": n, ..., "unused": n},
///    "peak_time": {"action", "command", "commands", "at"},
///    "live_at_peak": [{"bytes", "count", "kind", "name"}, ...],
///    "profile": {"actions": [{"name", "begin"}, ...], "times": [n, ...],
///      "kinds": {"saved": [n, ...], ...}},
///    "saved": [{"bytes", "type", "name"}, ...],
///    "recomputed": ["...", ...]}}}
/// ```
/// Kinds are those of `exec::MemoryKind`. Numbers of layers in the names of
/// tensors are folded (`h.*.w`), and `count` tensors with one name are one
/// item. In a pipeline it is the plan of the position with the largest arena,
/// whose number is `largest`; `positions` has the plans of all.
llvm::json::Value memoryReport(mlir::ModuleOp module);

/// Returns the elements and bytes that each device sends in one run of an entry
/// (by ring algorithms, see `machines::elementsSent`), after
/// `--exec-plan-memory`, for `--report`:
/// ```
/// {"train": {"count": n, "elements": x, "bytes": x,
///   "collectives": [{"kind": "all_reduce", "axes": "\"tp\"", "line":
///   "model.py:7",
///     "cause": "...", "count": n, "elements": x, "bytes": x}, ...],
///   "totals": [{"kind", "axes", "count", "elements", "bytes"}, ...]}}
/// ```
/// `updated_again`: what the repeated update (`--pipe-post-validate`) sends in
/// addition, in a step that needs it.
llvm::json::Value communicationReport(mlir::ModuleOp module);

/// Returns the shardings of the entries' tensors, for `--report`:
/// ```
/// {"mesh": [{"axis": "tp", "size": 2}, ...],
///  "tensors": {"w": {"shape": [8, 4], "element_bits": 32,
///    "dims": [[{"axis": "tp", "pre": 1, "size": 2}], []],
///    "positions": [0]}}}
/// ```
/// `positions`: the pipeline positions that hold the tensor.
llvm::json::Value placementReport(mlir::ModuleOp module);

/// The source of the costs of a schedule.
struct CostSource {
  /// Rates of the machine, see `machines::MachineModel::parse`.
  std::string machine;
  /// Costs of parts measured in a run, which replace estimates (see
  /// `scheduling::MeasuredCosts`), and the name of the run for messages.
  std::string measuredCosts, measuredFrom;
};

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
              const CostSource &source, ScheduleFormat format,
              const scheduling::Timeline *measured = nullptr);

/// Returns the costs, times, memory and bytes sent of the schedule, by stage,
/// pipeline position and boundary; with `measured`, also the idle times of that
/// timeline. Null if the module has no program.
llvm::FailureOr<llvm::json::Value>
scheduleReport(mlir::ModuleOp module, const CostSource &source,
               const scheduling::Timeline *measured = nullptr);

/// Adds `schedule`, a result of `scheduleReport`, to the report of an artifact,
/// and `decisions`, which explain the whole report in lines of text.
void completeReport(llvm::json::Object &report, llvm::json::Value schedule);

/// How much of a report is explained: ten lines; all of it, with what differs
/// in the numbers of layers alone as one line; all of it; or the memory of a
/// device on a page.
enum class Detail : uint8_t { Summary, Layers, Full, Memory };
/// Returns the detail named "summary", "layers", "full" or "memory".
std::optional<Detail> parseDetail(llvm::StringRef name);

/// Explains the completed report of an artifact in lines of text.
std::vector<std::string> explainReport(const llvm::json::Object &report,
                                       Detail detail);

/// Returns at most ten lines of text: what the step needs of memory, what it
/// sends, and what bounds its time.
std::vector<std::string> summarizeReport(const llvm::json::Object &report);

/// Returns, for a page: the arena of each position, what a device needs outside
/// of it, and of the largest the bytes at the peak by kind, the time of the
/// peak, and the tensors that are in use then.
std::vector<std::string> explainMemory(const llvm::json::Object &report);

/// Returns the memory in use over a step, by kind, as counters for
/// ui.perfetto.dev. A command of the plan takes a microsecond; repeated actions
/// are there once.
std::string memoryTrace(const llvm::json::Object &report);

/// Returns the table and the answer of `findFit` (Planning/Fit.h) as lines of
/// text.
std::vector<std::string> explainFit(const llvm::json::Object &fit);

/// Returns the most important facts of `scheduleReport` as lines of text.
std::vector<std::string> explainSchedule(const llvm::json::Value &report);

} // namespace cleave

#endif // CLEAVE_REPORTS_REPORTS_H
