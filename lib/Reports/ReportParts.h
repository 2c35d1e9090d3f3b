//===- ReportParts.h - Parts of reports, and their text ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_REPORTS_REPORTPARTS_H
#define CLEAVE_LIB_REPORTS_REPORTPARTS_H

#include "cleave/Reports/Reports.h"

namespace cleave {

/// The facts of a report, from which its lines of text are made.
const llvm::json::Object &factsOf(const Report &report);
llvm::json::Object takeFactsOf(Report report);

/// Returns the memory plan of a program of `module`, for the key `plan`:
/// ```
/// {"arena_bytes": n, "bytes": {"parameter": n, "state": n, ...},
///  "outside": {"library": n, "messages": n},
///  "fixed": [{"bytes", "count", "kind", "name"}, ...],
///  "entries": {"train": {"peak_bytes": n, "lower_bound_bytes": n, "actions":
///  n,
///    "commands": {"contract": n, ...}, "message_bytes": n,
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
llvm::json::Object describeMemory(mlir::ModuleOp module,
                                  const runtime::MemoryPlan &plan);

/// Returns, of one position: bytes in all, by kind of tensor, and by entry what
/// activations and the like take at most.
llvm::json::Object
summarizeMemory(const runtime::MemoryPlan::Position &position);

/// Returns what forward saves for backward of a micro-batch, as
/// `--pipe-recompute` recorded it: an item for each set of blocks that save the
/// same, and one for what is outside of blocks, whose `blocks` are empty.
/// ```
/// [{"blocks": [0, 1, 2], "bytes": n (of one), "mask_bytes": n,
///   "tensors": [{"bytes", "count", "op", "line"}, ...]}, ...]
/// ```
/// `mask_bytes` are those of dropout masks, a byte for each element, which are
/// not stored.
llvm::json::Array savedByBlock(mlir::Operation *program);

/// Returns the elements and bytes that each device sends in one run of an entry
/// (by ring algorithms, see `machines::elementsSent`), after
/// `--exec-plan-memory`, for the key `communication`:
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

/// Returns the shardings of the entries' tensors, for the key `placement`:
/// ```
/// {"mesh": [{"axis": "tp", "size": 2}, ...],
///  "tensors": {"w": {"shape": [8, 4], "element_bits": 32,
///    "dims": [[{"axis": "tp", "pre": 1, "size": 2}], []],
///    "positions": [0]}}}
/// ```
/// `positions`: the pipeline positions that hold the tensor.
llvm::json::Value placementReport(mlir::ModuleOp module);

/// Returns an estimate, for the key `prediction`:
/// ```
/// {"device": "h200", "estimate": true, "launches": n, "tokens": n,
///  "seconds": x, "bytes_outside": x,
///  "rates": {"memory_bytes": x, ...},
///  "kinds": [{"kind": "products of bf16", "commands": n, "launches": n,
///    "operations": x, "bytes": x, "seconds": x}, ...],
///  "commands": [{"label": "add_3 model.py:7", "kind": "...", "count": n,
///    "launches": n, "operations": x, "bytes": x, "seconds": x}, ...]}
/// ```
llvm::json::Object describePrediction(const machines::Prediction &prediction);

/// Returns a plan's cost beside its closed form, for the key `cost`, whose
/// excesses are sentences; with `missing` alone if there is no form:
/// ```
/// {"missing": null,
///  "sent": [{"kind", "axes", "terms": "gradients", "count": n, "exceeds": b,
///    "elements": {"form": x, "plan": x, "ratio": x | null}, "bytes": {...}},
///    ...],
///  "operations": {...}, "parameter_bytes": {...}, "state_bytes": {...},
///  "replicated": [{"axis": "...", "ranks": n, "times": x, "line": "..."},
///    ...],
///  "excesses": ["...", ...]}
/// ```
llvm::json::Object describeCost(const CostFacts &cost);
/// Returns it as lines of text.
std::vector<std::string> explainCost(const llvm::json::Object &report);
/// Returns a line for each axis whose ranks repeat operations of each other.
std::vector<std::string> explainReplicated(const llvm::json::Object &report);

/// Returns the costs, times, memory and bytes sent of the schedule, for the key
/// `schedule`; null if the module has no program.
llvm::FailureOr<llvm::json::Value>
describeSchedule(mlir::ModuleOp module, const pipe::CostSource &source,
                 const scheduling::Timeline *measured);

/// Returns the most important facts of `describeSchedule` as lines of text.
std::vector<std::string> explainSchedule(const llvm::json::Value &schedule);

/// Returns at most ten lines of text: what the step needs of memory, what it
/// sends, and what bounds its time.
std::vector<std::string> summarizeReport(const llvm::json::Object &report);

/// Returns, for a page: the arena of each position, what a device needs outside
/// of it, and of the largest the bytes at the peak by kind, the time of the
/// peak, and the tensors that are in use then.
std::vector<std::string> explainMemory(const llvm::json::Object &report);

/// Returns a line for each decision of a report, which explain all of it.
llvm::json::Array explainDecisions(const llvm::json::Object &report);

} // namespace cleave

#endif // CLEAVE_LIB_REPORTS_REPORTPARTS_H
