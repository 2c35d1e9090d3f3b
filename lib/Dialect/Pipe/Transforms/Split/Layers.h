//===- Layers.h - Where the layers of a model begin -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_LAYERS_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_LAYERS_H

#include "mlir/IR/Operation.h"
#include "llvm/ADT/BitVector.h"

namespace cleave::pipe {

/// The structure of a run of ops: their names and types.
size_t labelOf(llvm::ArrayRef<mlir::Operation *> ops);

/// `count` times `period` elements from `begin` on.
struct RepeatedRun {
  size_t begin = 0, period = 0, count = 0;
  size_t covered() const { return period * count; }
  size_t end() const { return begin + covered(); }
};

/// The repetition of `labels` that covers most, of those the one of the
/// shortest period, and of those the first; its count is 0 if there is none.
RepeatedRun findRepetition(llvm::ArrayRef<size_t> labels);

/// The layers among ops in an order: runs of ops that are repeated, such as the
/// blocks of a transformer, or those of its encoder and of its decoder.
struct Layers {
  /// `seconds` has the time of each op, and `crossing` the bytes that are sent
  /// across a cut before it.
  Layers(llvm::ArrayRef<mlir::Operation *> ops, llvm::ArrayRef<double> seconds,
         llvm::ArrayRef<int64_t> crossing);

  int64_t count() const { return first.count(); }

  /// The first ops of layers, and the further ones of them.
  llvm::BitVector first, within;
};

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_SPLIT_LAYERS_H
