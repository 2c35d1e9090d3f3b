//===- RandomReshard.h - Random meshes and shardings ------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TESTING_RANDOMRESHARD_H
#define CLEAVE_TESTING_RANDOMRESHARD_H

#include "cleave/Dialect/Spmd/IR/Axes.h"
#include "cleave/Testing/Random.h"

namespace cleave {

/// A reshard of one tensor.
struct RandomReshard {
  spmd::Mesh mesh;
  llvm::SmallVector<int64_t, 4> shape;
  spmd::Sharding from, to;

  bool hasSubAxes() const;
  bool hasSeveralAxes() const;
  bool isPartial() const { return !from.partial.empty(); }
  /// Whether the shape may be not divisible by the source or the target.
  bool isUneven() const;
};

/// Draws a mesh of 1 to 4 axes with at most `maxPositions` positions, two
/// shardings of one shape, whether it is divisible by both, and whether the
/// source is partial; if both, the target may stay partial. Each feature is in
/// a third of the draws or more. Names of axes are never freed.
RandomReshard drawReshard(uint64_t seed, int64_t maxPositions = 16);

/// Draws a mesh of 1 to 4 axes.
spmd::Mesh drawMesh(Random &random, int64_t maxPositions);

/// The axes of the mesh in random order, some of them split into sub-axes if
/// `cut`.
spmd::AxisList drawDigits(Random &random, const spmd::Mesh &mesh, bool cut);

} // namespace cleave

#endif // CLEAVE_TESTING_RANDOMRESHARD_H
