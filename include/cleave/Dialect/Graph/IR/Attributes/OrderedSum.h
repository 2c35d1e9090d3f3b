//===- OrderedSum.h - Sums in an order of their own -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_ATTRIBUTES_ORDEREDSUM_H
#define CLEAVE_DIALECT_GRAPH_IR_ATTRIBUTES_ORDEREDSUM_H

#include "llvm/ADT/StringRef.h"

namespace cleave::graph {

/// Unit attribute on a `graph.reduce`: the order in which elements are combined
/// depends on the sizes of the reduced dimensions alone. Each result has the
/// same bits whatever the sizes of the others, and whatever other ops share its
/// kernel.
inline constexpr llvm::StringLiteral kOrderedAttr = "graph.ordered";

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_IR_ATTRIBUTES_ORDEREDSUM_H
