//===- ComposedAttention.h - Attention of smaller ops -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Attention that is not one op: scores of queries and keys, whatever a model
/// makes of them (a soft cap, sinks, biases, masks), a softmax over the keys,
/// and matmuls with the scores or the probabilities, forward and backward.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_COMPOSEDATTENTION_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_COMPOSEDATTENTION_H

#include "Sequence.h"
#include "llvm/ADT/MapVector.h"

namespace cleave::spmd {

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

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_COMPOSEDATTENTION_H
