//===- Moves.h - Movements as data ------------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A movement as plain data, what it does to a sharding, and its op. The
/// planner makes moves, partitioning builds their ops, verification reads them
/// back: what a movement means is said once, here.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_MOVES_H
#define CLEAVE_DIALECT_SPMD_IR_MOVES_H

#include "cleave/Dialect/Spmd/IR/Axes.h"
#include "mlir/IR/Value.h"

namespace mlir {
class FlatSymbolRefAttr;
class Location;
class OpBuilder;
class RankedTensorType;
} // namespace mlir

namespace cleave::spmd {

enum class MoveKind : uint8_t {
  Slice,
  AllReduce,
  ReduceScatter,
  AllGather,
  AllToAll,
  Permute,
  Rotate,
  Broadcast,
  Reduce
};

/// One movement, in the terms of the op of the same name.
struct Move {
  MoveKind kind = MoveKind::Slice;
  /// For each dimension: the axes by which it is split (slice,
  /// reduce_scatter) or joined (all_gather), or that are replaced (permute).
  llvm::SmallVector<AxisList, 4> dims;
  /// Permute: what replaces them.
  llvm::SmallVector<AxisList, 4> newDims;
  /// All_reduce, all_to_all, rotate, broadcast, reduce: the axes.
  AxisList axes;
  /// All_to_all: the dimensions; rotate, broadcast, reduce: `from` is the one
  /// that comes in parts.
  unsigned from = 0, to = 0;
  /// Broadcast, reduce: the number of the part.
  int64_t part = 0;
  /// Reduce: what the part is put into, or null.
  mlir::Value into;
  /// All_reduce, reduce_scatter.
  PartialKind reduction = PartialKind::Sum;
  /// Of the result.
  Sharding sharding;
  /// What each position sends, in elements, in ring terms.
  double elements = 0;
};

/// Makes of the sharding of a movement's operand that of its result. Returns
/// why it cannot be: axes that do not split the operand, that split it already,
/// or on which it is not partial.
std::optional<std::string> applyMove(const Mesh &mesh, const Move &move,
                                     Sharding &sharding);

/// The type of the whole tensor behind `move`, of one of type `global`.
mlir::RankedTensorType movedType(const Mesh &mesh, const Move &move,
                                 mlir::RankedTensorType global);

/// The axes over which `op` sums up its first operand itself.
AxisList summedByItself(mlir::Operation *op);

/// The movement that `op` is; nothing for an op that is none. Its `sharding`
/// and `elements` are left empty.
std::optional<Move> readMove(mlir::Operation *op);

/// Builds the op of `move` on `value`, whose whole tensor is of type `global`,
/// with `move.sharding` and the type of its own whole tensor noted on it.
mlir::Value buildMove(mlir::OpBuilder &builder, mlir::Location loc,
                      mlir::Value value, const Move &move,
                      mlir::FlatSymbolRefAttr meshName, const Mesh &mesh,
                      mlir::RankedTensorType global);

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_IR_MOVES_H
