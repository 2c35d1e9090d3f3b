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
  /// Positions of the mesh.
  int64_t maxPositions = 8;
  /// Micro-batches that will be placed: they divide the samples too.
  int64_t microBatches = 1;
  /// How likely an intermediate value is annotated.
  double constrain = 0.03;
  /// How likely an axis may leave a rest of what it splits.
  double uneven = 0;
  /// Positions of a pipeline beside those of the mesh; 0 for none.
  int64_t stages = 0;
};

/// Draws a mesh, gives each argument of `entry` a sharding on it, which divides
/// its shape unless sizes may be uneven, and annotates some intermediate
/// values.
void drawShardings(mlir::ModuleOp module, llvm::StringRef entry, uint64_t seed,
                   const RandomShardingOptions &options);

} // namespace cleave

#endif // CLEAVE_TESTING_RANDOMSHARDINGS_H
