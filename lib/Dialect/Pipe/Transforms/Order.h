//===- Order.h - The order of a program's actions ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_ORDER_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_ORDER_H

#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Dialect/Pipe/IR/Verify.h"

namespace cleave::pipe {

struct Order {
  Schedule schedule;
  StageMap map;
};

/// The whole order of `program` that `text`, of the file `file`, is; `map` may
/// be empty. Reports what is wrong at the places of the text.
mlir::FailureOr<Order> readHandWritten(ProgramOp program, llvm::StringRef text,
                                       llvm::StringRef file,
                                       llvm::StringRef map, int64_t devices,
                                       const VerifyOptions &options);

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_ORDER_H
