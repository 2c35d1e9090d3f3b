//===- Passes.h - Passes of the graph dialect -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_TRANSFORMS_PASSES_H
#define CLEAVE_DIALECT_GRAPH_TRANSFORMS_PASSES_H

#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace cleave::graph {

#define GEN_PASS_DECL
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "cleave/Dialect/Graph/Transforms/Passes.h.inc"

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_TRANSFORMS_PASSES_H
