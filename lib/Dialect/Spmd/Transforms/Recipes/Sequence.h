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

namespace cleave::spmd {

/// Returns whether `op` is attention, forward or backward, by its class of
/// work.
bool isAttention(mlir::Operation *op);

/// Whether `value` is an argument, or computed of one alone.
bool isGiven(mlir::Value value);

/// A set of dimension classes, by their numbers in `DimensionClasses`.
using SequenceClasses = llvm::SmallDenseSet<unsigned>;

class ComposedAttention;

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

/// Reports that `recipe` finds no attention: at the line of a softmax that may
/// be one, or else that `otherwise`.
mlir::LogicalResult refuseWithoutAttention(Annotator &annotator,
                                           llvm::StringRef recipe,
                                           llvm::StringRef otherwise);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_SEQUENCE_H
