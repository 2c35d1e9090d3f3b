//===- RandomGraph.h - Random well-typed models -----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TESTING_RANDOMGRAPH_H
#define CLEAVE_TESTING_RANDOMGRAPH_H

#include "cleave/Interpreter/Interpreter.h"
#include "cleave/Testing/Random.h"
#include "mlir/IR/OwningOpRef.h"

namespace cleave {

struct RandomGraphOptions {
  /// The number of ops of the model, without the loss.
  int64_t minOps = 10, maxOps = 60;
  /// The number of samples of a batch; divisible by the number of
  /// micro-batches.
  int64_t batch = 4;
  /// Element type of parameters and activations: "f32" or "f64".
  std::string element = "f32";
  /// Whether the model may contain random ops.
  bool dropout = true;
};

/// A model and values for all of its arguments.
struct RandomGraph {
  mlir::OwningOpRef<mlir::ModuleOp> module;
  NamedTensors inputs;
  /// Whether the gradients are the derivatives of the loss: an embedding with a
  /// padding index drops some.
  bool isDerivative = true;
  uint64_t seed = 0;
};

/// Draws a model in the model phase: parameters (some tied, some frozen),
/// inputs whose first dimension holds samples, skip connections and values used
/// more than once, and a scalar loss, the mean cross entropy of the rows that
/// are not ignored. Samples are independent, so that the batch can be split
/// anywhere.
RandomGraph drawRandomGraph(mlir::MLIRContext *context, uint64_t seed,
                            const RandomGraphOptions &options);

} // namespace cleave

#endif // CLEAVE_TESTING_RANDOMGRAPH_H
