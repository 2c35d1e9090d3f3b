//===- Sequence.h - Sharding of the sequence dimension ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_SEQUENCE_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_SEQUENCE_H

#include "Annotator.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"

namespace cleave::spmd {

/// Returns whether `op` is attention, forward or backward, by its class of
/// work.
bool isAttention(mlir::Operation *op);

/// Whether `value` is an argument, or computed of one alone.
bool isGiven(mlir::Value value);

/// A set of dimension classes, by their numbers in `DimensionClasses`.
using SequenceClasses = llvm::SmallDenseSet<unsigned>;

/// The attentions of one function that are composed of contractions.
class ComposedAttention {
public:
  /// Finds them; `classes` are those of `function` before annotations.
  ComposedAttention(const DimensionClasses &classes,
                    mlir::func::FuncOp function);

  bool empty() const { return products.empty(); }
  /// The classes of the positions of queries and keys.
  const SequenceClasses &sequences() const { return positions; }

  /// Shards queries over `axis`, and replicates the keys of their matmuls.
  void splitQueries(Annotator &annotator, llvm::StringRef axis) const;
  /// Shards the heads of the matmuls over `axis`, and their results for their
  /// readers along the sequence. Reports heads that `axis` does not divide.
  llvm::LogicalResult splitHeads(Annotator &annotator,
                                 llvm::StringRef axis) const;
  /// Says that the attentions do not run around a ring.
  void remarkGathered(llvm::StringRef recipe, llvm::StringRef axis) const;

private:
  /// The dimensions of a tensor of a matmul; of each at most one.
  struct Dims {
    std::optional<unsigned> query, key, heads;
  };
  /// A contraction with scores, or with what is made of them.
  struct Product {
    llvm::SmallVector<Dims, 2> operands;
    Dims result;
    /// A weight that makes the heads, and its dimension of them: a recipe
    /// before may have sharded it.
    mlir::BlockArgument weight;
    unsigned weightDim = 0;
    /// 0 without heads.
    int64_t headCount = 0;
  };

  llvm::MapVector<mlir::Operation *, Product> products;
  /// Operands of ops on scores of each head that are for all heads: masks.
  llvm::SmallVector<std::pair<mlir::OpOperand *, Dims>> shared;
  SequenceClasses positions;
  /// The softmax, or sum of exponentials, of each attention.
  llvm::SmallVector<mlir::Operation *> softmaxes;
};

/// Returns the classes of the sequence dimensions of `function`: dimensions of
/// attention operands that queries and keys do not share, and those of
/// `composed` attention.
SequenceClasses sequenceClasses(const DimensionClasses &classes,
                                mlir::func::FuncOp function,
                                const ComposedAttention &composed);

/// Shards the inputs of `function` over `axis` along the dimensions of the
/// classes `sequences` that hold no samples. Returns whether any input has such
/// a dimension. A dimension smaller than the axis is an error.
llvm::FailureOr<bool> splitInputs(Annotator &annotator,
                                  mlir::func::FuncOp function,
                                  const SequenceClasses &sequences,
                                  llvm::StringRef axis);

/// Shards the queries of attention `op`, forward or backward, over `axis`; it
/// reads all keys. Reports fewer queries than the axis has positions.
llvm::LogicalResult splitQueries(Annotator &annotator, mlir::Operation *op,
                                 llvm::StringRef axis);

/// Shards the queries of the attentions of `function` whose dimensions are of
/// the classes `sequences`, where no input has these: a model that makes its
/// sequence itself, of patches of images. Returns whether there are any.
llvm::FailureOr<bool> splitMadeSequences(Annotator &annotator,
                                         mlir::func::FuncOp function,
                                         const SequenceClasses &sequences,
                                         llvm::StringRef axis);

/// Returns the first softmax, or exponential, of a contraction of activations;
/// null if there is none.
mlir::Operation *findSoftmaxOfScores(mlir::func::FuncOp function);

/// Reports that `recipe` finds no attention: at the line of a softmax that may
/// be one, or else that `otherwise`.
mlir::LogicalResult refuseWithoutAttention(Annotator &annotator,
                                           llvm::StringRef recipe,
                                           llvm::StringRef otherwise);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_SEQUENCE_H
