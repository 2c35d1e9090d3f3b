//===- SourceLine.h - Source lines of a model -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_MESSAGES_SOURCELINE_H
#define CLEAVE_DIALECT_GRAPH_IR_MESSAGES_SOURCELINE_H

#include "mlir/IR/Location.h"
#include <optional>
#include <string>

namespace cleave {

/// The source line of the model in a location, such as "model.py:12"; empty if
/// it has none.
std::string sourceLine(mlir::Location loc);

/// The number of the region of torch.utils.checkpoint in a location, which
/// rewrites keep: `loc("graph.checkpoint 3"("model.py":12:5))`.
std::optional<int64_t> checkpointRegion(mlir::Location loc);

} // namespace cleave

#endif // CLEAVE_DIALECT_GRAPH_IR_MESSAGES_SOURCELINE_H
