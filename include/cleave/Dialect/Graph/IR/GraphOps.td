//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_GRAPHOPS_TD
#define CLEAVE_DIALECT_GRAPH_IR_GRAPHOPS_TD

include "cleave/Dialect/Graph/IR/ElementwiseOps.td"
include "cleave/Dialect/Graph/IR/ShapeOps.td"
include "cleave/Dialect/Graph/IR/ContractionOps.td"
include "cleave/Dialect/Graph/IR/NormAndLossOps.td"
include "cleave/Dialect/Graph/IR/UpdateOps.td"

#endif // CLEAVE_DIALECT_GRAPH_IR_GRAPHOPS_TD
