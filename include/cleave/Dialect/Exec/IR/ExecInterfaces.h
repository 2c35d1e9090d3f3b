//===- ExecInterfaces.h - Interfaces of commands ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_EXEC_IR_EXECINTERFACES_H
#define CLEAVE_DIALECT_EXEC_IR_EXECINTERFACES_H

#include "cleave/Dialect/Exec/IR/ExecDialect.h"

namespace cleave::exec {

/// A result in the memory of an operand.
struct Share {
  unsigned result, operand;
  /// True: always. False: only if the operand is dead after the command.
  bool must = false;
};

} // namespace cleave::exec

#include "cleave/Dialect/Exec/IR/ExecInterfaces.h.inc"

#endif // CLEAVE_DIALECT_EXEC_IR_EXECINTERFACES_H
