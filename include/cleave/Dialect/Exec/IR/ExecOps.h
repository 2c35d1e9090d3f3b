//===- ExecOps.h - Ops of the exec dialect ----------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_EXEC_IR_EXECOPS_H
#define CLEAVE_DIALECT_EXEC_IR_EXECOPS_H

#include "cleave/Dialect/Exec/IR/ExecDialect.h"
#include "cleave/Dialect/Exec/IR/ExecInterfaces.h"
#include "mlir/Interfaces/ControlFlowInterfaces.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"

#define GET_OP_CLASSES
#include "cleave/Dialect/Exec/IR/ExecOps.h.inc"

#endif // CLEAVE_DIALECT_EXEC_IR_EXECOPS_H
