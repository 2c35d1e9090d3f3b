//===- IndexUse.h - Operands that are used as indices -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_INDEXUSE_H
#define CLEAVE_DIALECT_GRAPH_IR_INDEXUSE_H

#include <cstdint>
#include <optional>

namespace mlir {
class DialectRegistry;
} // namespace mlir

namespace cleave::graph {

/// How an op uses an operand as indices.
struct IndexUse {
  /// Indices must be below this; 0 if they are not used as indices.
  int64_t bound = 0;
  /// The only value outside of [0, bound) that is allowed.
  std::optional<int64_t> ignored;
  /// Whether the results hold values of the operand.
  bool passes = false;
  /// Further values that the results may hold besides those of the operand.
  std::optional<int64_t> added = std::nullopt;
};

/// Registers the index uses of graph ops.
void registerIndexUseModels(mlir::DialectRegistry &registry);

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_IR_INDEXUSE_H
