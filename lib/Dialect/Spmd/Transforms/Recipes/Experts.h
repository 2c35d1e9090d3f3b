//===- Experts.h - Where values enter and leave experts ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Experts are what products with weights do side by side, each with weights of
/// its own; how the ops are connected says where tokens enter and leave.
/// Between lie values of places, `[samples, experts, places, features]`.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_EXPERTS_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_EXPERTS_H

#include "../DimensionClasses.h"

namespace cleave::spmd {

/// The experts of one class of dimensions. Annotations that came after the
/// classes are looked through.
class Experts {
public:
  Experts(const DimensionClasses &classes, unsigned number);

  /// The classes of `classes` that are experts. Heads with weights of their own
  /// are not: other products make them.
  static llvm::SmallVector<unsigned> find(const DimensionClasses &classes);

  /// The dimension of `value` that is the experts and nothing else, such as
  /// their places.
  std::optional<unsigned> expertDim(mlir::Value value) const;
  /// The dimension of `value` that is the places of each expert: no samples,
  /// and nothing that a weight has.
  std::optional<unsigned> placeDim(mlir::Value value) const;

  /// The values of `function` that samples' tokens have become, forward and
  /// backward.
  llvm::SmallVector<mlir::OpResult> entering(mlir::func::FuncOp function) const;
  /// Where what experts made goes back to samples: not where it is added up,
  /// since a sum of sums will do.
  llvm::SmallVector<mlir::OpOperand *>
  leaving(mlir::func::FuncOp function) const;

private:
  bool isPlaces(mlir::Value value) const;

  const DimensionClasses &classes;
  unsigned number;
  /// How many there are.
  int64_t count;
};

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_EXPERTS_H
