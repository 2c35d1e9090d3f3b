//===- OrderedReduce.h - Reductions in an order of their own ----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_EXEC_IR_ORDEREDREDUCE_H
#define CLEAVE_DIALECT_EXEC_IR_ORDEREDREDUCE_H

#include "llvm/ADT/StringRef.h"

namespace cleave::exec {

/// Unit attribute on an `exec.reduce`: the order of combination depends on the
/// target and the number of columns alone.
inline constexpr llvm::StringLiteral kOrderedAttr = "exec.ordered";

} // namespace cleave::exec

#endif // CLEAVE_DIALECT_EXEC_IR_ORDEREDREDUCE_H
