//===- SourceLine.h - Where a model says it ---------------------*- C++ -*-===//
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

/// The line of a model that a location speaks of, such as "model.py:12"; empty
/// when it names none.
std::string sourceLine(mlir::Location loc);

} // namespace cleave

#endif // CLEAVE_DIALECT_GRAPH_IR_SOURCELINE_H
