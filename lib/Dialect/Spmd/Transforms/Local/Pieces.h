//===- Pieces.h - Values that are slices of one -----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_LOCAL_PIECES_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_LOCAL_PIECES_H

#include "mlir/IR/Builders.h"

namespace cleave::spmd {

/// Values of a partitioned program that are slices of one along a dimension,
/// one after the other: each device has its shards of all pieces.
struct Pieces {
  llvm::SmallVector<mlir::Value> values;
  int64_t dim;
};

/// Whether types are equal but for the size of a dimension, and shardings are.
bool isAlike(mlir::Value a, mlir::Value b, int64_t dim);

/// Gives `whole` the sharding of `piece`, one of its pieces along a dimension.
mlir::Value placeAs(mlir::Value whole, mlir::Value piece, int64_t dim);

/// Marks `op` if what it does along `dim` of a value with the sharding of
/// `piece` is of a device alone.
void markOfDevice(mlir::Operation *op, mlir::Value piece, int64_t dim);

/// The value of which `pieces` are all slices, one after the other; null if
/// there is none.
mlir::Value cutFrom(const Pieces &pieces);

/// What `pieces` are with their first dimensions as one, if they are, and can
/// be concatenated along the first of these.
std::optional<Pieces> beforeReshape(const Pieces &pieces);

/// Builds the slices of `whole` that `pieces` are.
llvm::SmallVector<mlir::Operation *>
cut(mlir::OpBuilder &builder, mlir::Value whole, const Pieces &pieces);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_LOCAL_PIECES_H
