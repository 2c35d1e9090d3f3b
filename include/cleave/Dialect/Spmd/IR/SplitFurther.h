//===- SplitFurther.h - Ops on smaller shards -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// An op of a partitioned function by its rule on whole tensors, and the same
/// op on smaller shards.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_SPLITFURTHER_H
#define CLEAVE_DIALECT_SPMD_IR_SPLITFURTHER_H

#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

namespace cleave::spmd {

/// The rule of an op on whole tensors.
struct WholeRule {
  graph::ShardingRule rule;
  /// Tensors whose shards' places the op must know.
  llvm::SmallVector<graph::FactorMapping, 1> places;
};

/// That of `op`, which stands on shards: its form on tensors of the types
/// `operands` and `results`. Nothing for an op without one.
std::optional<WholeRule> wholeRule(mlir::Operation *op,
                                   mlir::TypeRange operands,
                                   mlir::TypeRange results);

/// An op of which a dimension is split by more axes.
struct FurtherSplit {
  WholeRule whole;
  /// The axes of each factor, and how operands and results lie then.
  FactorAxes axes;
  llvm::SmallVector<Sharding, 3> operands;
  llvm::SmallVector<Sharding, 1> results;
};

/// How `op` makes its result number `result` so that it lies as `wanted`, which
/// splits it further. Nothing where it cannot without a sum over devices more
/// than now.
std::optional<FurtherSplit> splitFurther(mlir::Operation *op, unsigned result,
                                         const Sharding &wanted,
                                         const Mesh &mesh);

/// Builds `op` on operands that lie as `split` says, with what is written on
/// it.
mlir::Operation *buildFurther(mlir::OpBuilder &builder, mlir::Operation *op,
                              const FurtherSplit &split,
                              mlir::ValueRange operands,
                              mlir::FlatSymbolRefAttr meshName,
                              const Mesh &mesh);

/// For each dimension the axes by which `to` splits it behind those of `from`;
/// nothing where it does not begin with them.
std::optional<llvm::SmallVector<AxisList, 4>>
addedAxes(const Mesh &mesh, const Sharding &from, const Sharding &to);

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_IR_SPLITFURTHER_H
