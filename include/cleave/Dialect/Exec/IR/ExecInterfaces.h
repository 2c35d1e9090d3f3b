//===- ExecInterfaces.h - What passes ask of commands -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_EXEC_IR_EXECINTERFACES_H
#define CLEAVE_DIALECT_EXEC_IR_EXECINTERFACES_H

#include "cleave/Dialect/Exec/IR/ExecDialect.h"

namespace cleave::exec {

/// A result that lies in the memory of an operand.
struct Share {
  unsigned result, operand;
  /// True: it always does. False: it may, where the operand is dead after.
  bool must = false;
};

/// How an op uses an operand as indices.
struct IndexUse {
  /// Indices must be below this; 0: they are not used as indices.
  int64_t bound = 0;
  /// The only value outside of [0, bound) that is allowed.
  std::optional<int64_t> ignored;
  /// The results hold values of the operand.
  bool passes = false;
  /// What the results may hold besides values of operands that are passed on.
  std::optional<int64_t> added = std::nullopt;
};

} // namespace cleave::exec

#include "cleave/Dialect/Exec/IR/ExecInterfaces.h.inc"

#endif // CLEAVE_DIALECT_EXEC_IR_EXECINTERFACES_H
