//===- Clones.h - Ops that are computed again -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_CLONES_H
#define CLEAVE_DIALECT_GRAPH_IR_CLONES_H

#include "llvm/ADT/StringRef.h"

namespace cleave::graph {

/// On a contraction and on its clones in backward: a number that they share, so
/// that all of them are computed in the same form and give the same bits; and
/// on a clone, that it is one.
inline constexpr llvm::StringLiteral kTwinAttr = "twin";
inline constexpr llvm::StringLiteral kCloneAttr = "clone";

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_IR_CLONES_H
