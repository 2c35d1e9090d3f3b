//===- Order.h - The order of a program's actions ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SCHEDULE_ORDER_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SCHEDULE_ORDER_H

#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Scheduling/Check/Verify.h"

namespace cleave::pipe {

/// A schedule and its stage map.
struct Order {
  Schedule schedule;
  StageMap map;
};

/// Parses an order of `program` from the text of `file`, and inserts the parts
/// and transfers that it does not name. `map` is the name of its stage map, or
/// empty. Emits errors at the lines of the text.
mlir::FailureOr<Order> readHandWritten(ProgramOp program, llvm::StringRef text,
                                       llvm::StringRef file,
                                       llvm::StringRef map, int64_t devices,
                                       const VerifyOptions &options);

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SCHEDULE_ORDER_H
