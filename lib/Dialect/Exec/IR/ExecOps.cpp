//===- ExecOps.cpp - Generated definitions of the exec ops ---===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/ExecOps.h"

using namespace mlir;
using namespace cleave::exec;

#define GET_OP_CLASSES
#include "cleave/Dialect/Exec/IR/ExecOps.cpp.inc"
