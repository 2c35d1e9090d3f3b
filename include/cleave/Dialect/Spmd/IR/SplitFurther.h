//===- SplitFurther.h - Ops on smaller shards -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Rebuilds an op of a partitioned function on smaller shards, by its sharding
/// rule on global tensors.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_SPLITFURTHER_H
#define CLEAVE_DIALECT_SPMD_IR_SPLITFURTHER_H

#include "cleave/Dialect/Spmd/IR/SpmdOps.h"

namespace cleave::spmd {

/// The sharding rule of an op on global tensors.
struct WholeRule {
  graph::ShardingRule rule;
  /// Tensors whose shard offsets the op reads.
  llvm::SmallVector<graph::FactorMapping, 1> places;
};

/// Returns the rule of `op`, an op on shards, for its form on global tensors of
/// types `operands` and `results`; nothing for an op without a rule.
std::optional<WholeRule> wholeRule(mlir::Operation *op,
                                   mlir::TypeRange operands,
                                   mlir::TypeRange results);

/// An op with a dimension that is sharded over additional axes.
struct FurtherSplit {
  WholeRule whole;
  /// The axes of each factor, and the shardings of operands and results then.
  FactorAxes axes;
  llvm::SmallVector<Sharding, 3> operands;
  llvm::SmallVector<Sharding, 1> results;
};

/// Returns how `op` computes result number `result` with sharding `wanted`,
/// which adds axes to that of the result. Nothing where that needs an
/// additional reduction over devices.
std::optional<FurtherSplit> splitFurther(mlir::Operation *op, unsigned result,
                                         const Sharding &wanted,
                                         const Mesh &mesh);

/// Builds `op` on `operands` with the shardings of `split`, with its
/// attributes.
mlir::Operation *buildFurther(mlir::OpBuilder &builder, mlir::Operation *op,
                              const FurtherSplit &split,
                              mlir::ValueRange operands,
                              mlir::FlatSymbolRefAttr meshName,
                              const Mesh &mesh);

/// Returns for each dimension the minor axes that `to` adds to those of `from`;
/// nothing where the axes of `to` do not begin with those of `from`.
std::optional<llvm::SmallVector<AxisList, 4>>
addedAxes(const Mesh &mesh, const Sharding &from, const Sharding &to);

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_IR_SPLITFURTHER_H
