//===- Sources.h - What a value is computed from ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_ANALYSIS_SOURCES_H
#define CLEAVE_DIALECT_GRAPH_ANALYSIS_SOURCES_H

#include "mlir/IR/Operation.h"
#include "llvm/ADT/DenseSet.h"

namespace cleave::graph {

/// Calls `visit` with `value` and with values that it is computed from, each
/// once. `visit` appends those that come next to the list that it is given.
template <typename F> void walkSources(mlir::Value value, const F &visit) {
  llvm::SmallVector<mlir::Value> work{value};
  llvm::DenseSet<mlir::Value> seen;
  while (!work.empty())
    if (mlir::Value next = work.pop_back_val(); seen.insert(next).second)
      visit(next, work);
}

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_ANALYSIS_SOURCES_H
