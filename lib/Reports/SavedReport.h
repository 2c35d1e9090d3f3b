//===- SavedReport.h - What forward saves, by block -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_REPORTS_SAVEDREPORT_H
#define CLEAVE_LIB_REPORTS_SAVEDREPORT_H

#include "mlir/IR/Operation.h"
#include "llvm/Support/JSON.h"

namespace cleave {

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

} // namespace cleave

#endif // CLEAVE_LIB_REPORTS_SAVEDREPORT_H
