//===- GraphOps.h - Ops of the graph dialect --------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_GRAPHOPS_H
#define CLEAVE_DIALECT_GRAPH_IR_GRAPHOPS_H

#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "mlir/IR/PatternMatch.h"

#define GET_OP_CLASSES
#include "cleave/Dialect/Graph/IR/GraphOps.h.inc"

#endif // CLEAVE_DIALECT_GRAPH_IR_GRAPHOPS_H
