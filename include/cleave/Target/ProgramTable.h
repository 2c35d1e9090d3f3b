//===- ProgramTable.h - The command table of a module -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TARGET_PROGRAMTABLE_H
#define CLEAVE_TARGET_PROGRAMTABLE_H

#include "cleave/Runtime/Program.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/JSON.h"

namespace cleave {

/// The command tables of a module after `--exec-plan-memory`, one for each
/// position of the pipeline, or a located error; each exchange is waited for
/// where it begins. The caller sets `cpu`, `vectorBits` and `metadata`.
llvm::FailureOr<std::vector<runtime::Program>>
translateToPrograms(mlir::ModuleOp module);

/// Whether what programs repeat without writing it out can go on in the memory
/// of what they do write out, after `--exec-plan-memory`. Where not, compile
/// again with every action written out.
bool rowsRepeat(mlir::ModuleOp module);

/// What memory planning decided, for `--report`:
/// ```
/// {"arena_bytes": n, "fixed_bytes": {"parameter": n, "state": n, ...},
///  "entries": {"train": {"peak_bytes": n, "lower_bound_bytes": n, "actions":
///  n,
///    "commands": {"contract": n, ...}, "live_at_peak": [{"bytes", "kind",
///    "name"}, ...], "saved": [{"bytes", "type", "name"}, ...],
///    "recomputed": ["...", ...]}}}
/// ```
/// In a pipeline it is that of `largest`, the position with the largest arena,
/// and `positions` has all.
llvm::json::Value memoryReport(mlir::ModuleOp module);

/// What each device sends in one run of an entry, in ring terms, after
/// `--exec-plan-memory`, for `--report`:
/// ```
/// {"train": {"count": n, "elements": x, "bytes": x,
///   "collectives": [{"kind": "all_reduce", "axes": "\"tp\"", "line":
///   "model.py:7",
///     "cause": "...", "count": n, "elements": x, "bytes": x}, ...],
///   "totals": [{"kind", "axes", "count", "elements", "bytes"}, ...]}}
/// ```
/// `updated_again`: what an update that was made before it was validated sends
/// more when it is made once more.
llvm::json::Value communicationReport(mlir::ModuleOp module);

/// How tensors of the entries lie on the mesh, for `--report`:
/// ```
/// {"mesh": [{"axis": "tp", "size": 2}, ...],
///  "tensors": {"w": {"shape": [8, 4], "element_bits": 32,
///    "dims": [[{"axis": "tp", "pre": 1, "size": 2}], []],
///    "positions": [0]}}}
/// ```
/// `positions`: of a pipeline, those that hold the tensor.
llvm::json::Value placementReport(mlir::ModuleOp module);

} // namespace cleave

#endif // CLEAVE_TARGET_PROGRAMTABLE_H
