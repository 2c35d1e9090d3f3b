//===- Work.h - Ops that dominate the time of a step ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_ANALYSIS_WORK_H
#define CLEAVE_DIALECT_GRAPH_ANALYSIS_WORK_H

#include "cleave/Dialect/Graph/IR/GraphOps.h"

namespace cleave::graph {

/// Whether `op` is a contraction or attention, by its cost. These take most of
/// the time of a step.
inline bool isHeavyWork(mlir::Operation *op) {
  auto costed = llvm::dyn_cast<CostOpInterface>(op);
  if (!costed)
    return false;
  WorkClass work = costed.getCost().work;
  return work == WorkClass::Contraction || work == WorkClass::Attention;
}

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_ANALYSIS_WORK_H
