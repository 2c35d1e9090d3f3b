//===- SourceLine.h - Source lines of a model -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_SOURCELINE_H
#define CLEAVE_DIALECT_GRAPH_IR_SOURCELINE_H

#include "mlir/IR/Location.h"
#include <string>

namespace cleave {

/// The source line of the model in a location, such as "model.py:12"; empty if
/// it has none.
std::string sourceLine(mlir::Location loc);

} // namespace cleave

#endif // CLEAVE_DIALECT_GRAPH_IR_SOURCELINE_H
