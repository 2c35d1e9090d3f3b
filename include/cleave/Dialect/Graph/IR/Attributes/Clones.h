//===- Clones.h - Ops that are computed again -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_ATTRIBUTES_CLONES_H
#define CLEAVE_DIALECT_GRAPH_IR_ATTRIBUTES_CLONES_H

#include "mlir/IR/Operation.h"

namespace cleave::graph {

/// On a contraction and on its clones in backward: a number that they share, so
/// that all of them are computed in the same form and give the same bits; and
/// on a clone, that it is one.
inline constexpr llvm::StringLiteral kTwinAttr = "graph.twin";
inline constexpr llvm::StringLiteral kCloneAttr = "graph.clone";

/// Renames these attributes in `root`, which may be of a version in which they
/// had no prefix.
inline void renameOldCloneAttrs(mlir::Operation *root) {
  root->walk([](mlir::Operation *op) {
    for (auto [old, now] : {std::pair(llvm::StringRef("twin"), kTwinAttr),
                            std::pair(llvm::StringRef("clone"), kCloneAttr)})
      if (mlir::Attribute value = op->getDiscardableAttr(old)) {
        op->removeDiscardableAttr(old);
        op->setDiscardableAttr(now, value);
      }
  });
}

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_IR_ATTRIBUTES_CLONES_H
