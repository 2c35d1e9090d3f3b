//===- Units.h - What a compressor chooses from -----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_COMPRESSION_UNITS_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_COMPRESSION_UNITS_H

#include "cleave/Dialect/Graph/IR/Formula.h"

namespace cleave::spmd {

/// A tensor as equal units, each of which is compressed on its own: the whole
/// tensor, the shards that ranks have of it, or pieces of its elements in their
/// order, of which the last is filled up with zeros.
class Units {
public:
  /// One unit.
  static Units whole(llvm::ArrayRef<int64_t> shape);
  /// The shards of a tensor of which a rank has `shard`.
  static Units shards(llvm::ArrayRef<int64_t> shape,
                      llvm::ArrayRef<int64_t> shard);
  /// `count` pieces of `size` elements; by default as few as hold them all.
  static Units pieces(llvm::ArrayRef<int64_t> shape, int64_t count,
                      int64_t size = 0);

  int64_t count() const { return number; }
  /// The number of elements of a unit.
  int64_t size() const { return elements; }

  /// `[leading..., shape...]` as `[leading..., count, size]`.
  mlir::Value split(graph::Formula &f, mlir::Value value) const;
  /// The reverse of `split`.
  mlir::Value join(graph::Formula &f, mlir::Value value) const;

private:
  explicit Units(llvm::ArrayRef<int64_t> shape) : shape(shape) {}
  llvm::SmallVector<int64_t> permutation(int64_t leading, bool back) const;
  llvm::SmallVector<int64_t> cutShape() const;

  llvm::SmallVector<int64_t> shape;
  /// The number of parts of each dimension: of shards.
  llvm::SmallVector<int64_t> parts;
  int64_t number = 1, elements = 0;
  bool inOrder = true;
};

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_COMPRESSION_UNITS_H
