//===- Blocks.h - The repeated blocks of a model ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_RECOMPUTE_BLOCKS_H
#define CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_RECOMPUTE_BLOCKS_H

#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "llvm/ADT/DenseMap.h"

namespace cleave::pipe {

/// The blocks that the forward parts of a program repeat, such as the layers of
/// a transformer, found by structure alone; or the regions of
/// torch.utils.checkpoint that the model has.
class Blocks {
public:
  /// `forward` are the forward parts, in the order of stages. With `regions`,
  /// blocks are the checkpoint regions.
  explicit Blocks(llvm::ArrayRef<InvokeOp> forward, bool regions = false);

  /// Whether the model has checkpoint regions.
  static bool hasRegions(llvm::ArrayRef<InvokeOp> forward);

  /// The block of `op`, numbered in the order of the model; -1 outside of
  /// blocks.
  int64_t blockOf(mlir::Operation *op) const {
    auto it = blocks.find(op);
    return it == blocks.end() ? -1 : it->second;
  }
  /// Whether another block, or an op outside of blocks, reads the op's result,
  /// possibly through views.
  bool isBoundary(mlir::Value value) const { return boundary.contains(value); }
  /// Whether `op` is between two contractions of values of samples, the first
  /// of them included: the core of an attention that is not one op.
  bool isCore(mlir::Operation *op) const { return core.contains(op); }
  /// Whether `op` is in a forward part.
  bool knows(mlir::Operation *op) const {
    return functions.contains(op->getParentOp());
  }
  /// Whether `op` depends on values of samples by more than cheap ops; masks
  /// and the like do not.
  bool dependsOnSamples(mlir::Operation *op) const {
    return sampled.contains(op);
  }
  /// Whether backward alone reads what `op` computes: a cast, a flag or a view.
  bool isForBackward(mlir::Operation *op) const {
    return forBackward.contains(op);
  }

private:
  struct Segment;
  struct Part;
  void findRepeated(llvm::ArrayRef<Part> parts);
  void findRegions(llvm::ArrayRef<Part> parts);
  void findCore(const Part &part);
  void findBoundary(const Part &part);

  llvm::DenseMap<mlir::Operation *, int64_t> blocks;
  llvm::DenseSet<mlir::Value> boundary;
  llvm::DenseSet<mlir::Operation *> core, sampled, forBackward, functions;
  int64_t number = 0;
};

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_TRANSFORMS_RECOMPUTE_BLOCKS_H
