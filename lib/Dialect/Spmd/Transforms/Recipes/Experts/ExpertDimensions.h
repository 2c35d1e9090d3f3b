//===- ExpertDimensions.h - The dimensions of experts -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Finds the dimensions of experts in a mixture of experts: batch dimensions of
/// products with parameters in which each index has its own weights, and of
/// lookups in which each has its own table. The values
/// that experts compute are `[samples, experts, slots, features]`, where each
/// slot holds one token of a sample (the capacity of an expert).
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_EXPERTS_EXPERTDIMENSIONS_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_EXPERTS_EXPERTDIMENSIONS_H

#include "../Annotator.h"
#include "cleave/Dialect/Spmd/Transforms/Propagation/DimensionClasses.h"

namespace cleave::spmd {

/// The expert dimensions of one dimension class. Queries look through
/// annotations that were inserted after the classes were computed.
class ExpertDimensions {
public:
  ExpertDimensions(const DimensionClasses &classes, unsigned number);

  /// Returns the numbers of the classes that are experts. Heads that have their
  /// own weights are not experts, since other products make them.
  static llvm::SmallVector<unsigned> find(const DimensionClasses &classes);

  /// The arguments that have experts or tables, and their dimensions of these.
  using Members =
      llvm::SmallVector<std::pair<mlir::BlockArgument, unsigned>, 4>;
  const Members &getMembers() const { return members; }

  /// Returns the dimension of `value` over experts. A dimension that joins
  /// experts with others, such as their slots, is not one.
  std::optional<unsigned> expertDim(mlir::Value value) const;
  /// Returns the dimension of `value` over the slots of each expert: it holds
  /// no samples and no dimension of a weight.
  std::optional<unsigned> slotDim(mlir::Value value) const;

  /// Returns the dimension of `value` that is one of weights of experts, beside
  /// that over experts: their features.
  std::optional<unsigned> featureDim(mlir::Value value) const;
  /// Returns the dimension of `tokens` that is those features of `places`.
  std::optional<unsigned> featureDim(mlir::Value tokens,
                                     mlir::Value places) const;

  /// Returns the results that dispatch tokens to the slots of experts, forward
  /// and backward.
  llvm::SmallVector<mlir::OpResult> entering(mlir::func::FuncOp function) const;
  /// Returns the operands at which outputs of experts are combined into
  /// samples. Ops that sum over experts are left out, since they take partial
  /// sums.
  llvm::SmallVector<mlir::OpOperand *>
  leaving(mlir::func::FuncOp function) const;

private:
  bool hasSlots(mlir::Value value) const;

  const DimensionClasses &classes;
  unsigned number;
  /// The number of experts.
  int64_t count;
  Members members;
};

/// Shards experts of `function` to which matmuls with masks send tokens, or
/// that see every token, over `axis`: their weights, and what matmuls with them
/// read and compute. The axis is `folded` if no samples are sharded over it.
/// Returns whether there are any; reports a number of experts that the axis
/// does not divide.
llvm::FailureOr<bool> splitMaskedExperts(Annotator &annotator,
                                         mlir::func::FuncOp function,
                                         llvm::StringRef axis, bool folded);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_EXPERTS_EXPERTDIMENSIONS_H
