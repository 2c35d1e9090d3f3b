//===- VerifyEntry.h - What holds of every entry ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_VERIFYENTRY_H
#define CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_VERIFYENTRY_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace cleave::graph {

/// Checks that an entry is one block of ops of the dialects `graph` and `spmd`,
/// and that its arguments have different names.
llvm::LogicalResult verifyEntry(mlir::func::FuncOp entry);

} // namespace cleave::graph

#endif // CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_VERIFYENTRY_H
