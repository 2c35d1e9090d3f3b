//===- DependsOnIndex.h - Ops that depend on an index -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_DEPENDSONINDEX_H
#define CLEAVE_DIALECT_GRAPH_IR_DEPENDSONINDEX_H

#include "mlir/IR/Operation.h"

namespace cleave::graph {

/// Whether the result of `op` depends on the index of elements along `factor`
/// of its sharding rule: its form on a shard reads the offset.
bool dependsOnIndex(mlir::Operation *op, int64_t factor);

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_IR_DEPENDSONINDEX_H
