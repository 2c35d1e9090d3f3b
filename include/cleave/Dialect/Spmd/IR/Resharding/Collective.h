//===- Collective.h - Collectives as data -----------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A collective as plain data, its effect on a sharding, and its op. The
/// planner of reshards creates collectives, partitioning builds their ops, and
/// verification reads them back from ops.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_RESHARDING_COLLECTIVE_H
#define CLEAVE_DIALECT_SPMD_IR_RESHARDING_COLLECTIVE_H

#include "cleave/Dialect/Spmd/IR/Axes.h"
#include "cleave/Support/CollectiveKind.h"
#include "mlir/IR/Value.h"

namespace mlir {
class FlatSymbolRefAttr;
class Location;
class OpBuilder;
class RankedTensorType;
} // namespace mlir

namespace cleave::spmd {

using cleave::CollectiveKind;

/// One collective, with the parameters of the op of the same name.
struct Collective {
  CollectiveKind kind = CollectiveKind::Slice;
  /// For each dimension: the axes over which it is sharded (slice,
  /// reduce_scatter) or gathered (all_gather), or that are replaced (permute).
  llvm::SmallVector<AxisList, 4> dims;
  /// Permute: the new axes of each dimension.
  llvm::SmallVector<AxisList, 4> newDims;
  /// All_reduce, all_to_all, rotate, broadcast, reduce: the axes.
  AxisList axes;
  /// All_to_all: the dimensions. Rotate, broadcast, reduce: `from` is the
  /// dimension that is divided into parts.
  unsigned from = 0, to = 0;
  /// Broadcast, reduce: the number of the part.
  int64_t part = 0;
  /// Reduce: the accumulator, or null.
  mlir::Value into;
  /// All_reduce, reduce_scatter: the reduction.
  ReductionKind reduction = ReductionKind::Sum;
  /// The sharding of the result.
  Sharding sharding;
  /// The number of elements that each position sends, as for ring algorithms.
  double elements = 0;
};

/// Changes `sharding`, that of the operand of `move`, to that of the result.
/// Returns an error for axes that do not shard the operand, that shard it
/// already, or on which it is not partial.
std::optional<std::string>
applyCollective(const Mesh &mesh, const Collective &move, Sharding &sharding);

/// Returns the global type of the result of `move` for an operand of global
/// type `global`.
mlir::RankedTensorType collectiveType(const Mesh &mesh, const Collective &move,
                                      mlir::RankedTensorType global);

/// Returns the axes over which `op` itself reduces its first operand.
AxisList summedByItself(mlir::Operation *op);

/// Returns the collective of `op`, without `sharding` and `elements`; nothing
/// for an op that is not a collective.
std::optional<Collective> readCollective(mlir::Operation *op);

/// Builds the op of `move` on `value`, of global type `global`, and annotates
/// it with `move.sharding` and the global type of its result.
mlir::Value buildCollective(mlir::OpBuilder &builder, mlir::Location loc,
                            mlir::Value value, const Collective &move,
                            mlir::FlatSymbolRefAttr meshName, const Mesh &mesh,
                            mlir::RankedTensorType global);

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_IR_RESHARDING_COLLECTIVE_H
