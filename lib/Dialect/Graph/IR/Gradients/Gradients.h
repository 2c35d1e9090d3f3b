//===- Gradients.h - Shared by the gradients of the graph ops ---*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_GRAPH_IR_GRADIENTS_GRADIENTS_H
#define CLEAVE_LIB_DIALECT_GRAPH_IR_GRADIENTS_GRADIENTS_H

#include "cleave/Dialect/Graph/IR/Formula.h"

/// The signature of every gradient builder.
#define CLEAVE_GRADIENTS(OP)                                                   \
  llvm::LogicalResult cleave::graph::OP::buildGradients(                       \
      mlir::OpBuilder &builder, llvm::ArrayRef<mlir::Value> resultGradients,   \
      const llvm::BitVector &needed,                                           \
      llvm::MutableArrayRef<mlir::Value> operandGradients)

/// An op whose results have no gradient: integers, flags, or step functions.
#define CLEAVE_ZERO_GRADIENT(OP)                                               \
  CLEAVE_GRADIENTS(OP) { return mlir::success(); }

/// An op of backward or update: it is not differentiated again.
#define CLEAVE_NO_GRADIENT(OP)                                                 \
  CLEAVE_GRADIENTS(OP) {                                                       \
    return emitOpError("has no gradient: it is part of a training step, "      \
                       "which is not differentiated again");                   \
  }

#endif // CLEAVE_LIB_DIALECT_GRAPH_IR_GRADIENTS_GRADIENTS_H
