//===- Passes.h - Passes of the pipe dialect --------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_PIPE_TRANSFORMS_PASSES_H
#define CLEAVE_DIALECT_PIPE_TRANSFORMS_PASSES_H

#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Scheduling/Schedule.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace cleave::pipe {

#define GEN_PASS_DECL
#include "cleave/Dialect/Pipe/Transforms/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "cleave/Dialect/Pipe/Transforms/Passes.h.inc"

} // namespace cleave::pipe

#endif // CLEAVE_DIALECT_PIPE_TRANSFORMS_PASSES_H
