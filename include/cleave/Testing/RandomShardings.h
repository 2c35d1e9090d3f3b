//===- RandomShardings.h - Random annotations of a step ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TESTING_RANDOMSHARDINGS_H
#define CLEAVE_TESTING_RANDOMSHARDINGS_H

#include "mlir/IR/BuiltinOps.h"

namespace cleave {

struct RandomShardingOptions {
  /// The largest number of mesh positions.
  int64_t maxPositions = 8;
  /// Micro-batches that will be placed: they must divide the samples too.
  int64_t microBatches = 1;
  /// The probability that an intermediate value is annotated.
  double constrain = 0.03;
  /// The probability that an axis need not divide the dimension that it shards.
  double uneven = 0;
  /// Pipeline positions in addition to those of the mesh; 0 for none.
  int64_t stages = 0;
};

/// Draws a mesh, gives each argument of `entry` a sharding on it, by which its
/// shape is divisible unless sizes may be uneven, and annotates some
/// intermediate values.
void drawShardings(mlir::ModuleOp module, llvm::StringRef entry, uint64_t seed,
                   const RandomShardingOptions &options);

} // namespace cleave

#endif // CLEAVE_TESTING_RANDOMSHARDINGS_H
