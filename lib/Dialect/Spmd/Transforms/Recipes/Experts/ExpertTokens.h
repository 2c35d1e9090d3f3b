//===- ExpertTokens.h - Tokens that experts read and give -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Where tokens of experts are gathered that ranks share along the sequence,
/// and where what experts give is added up and scattered over them. The recipe
/// "expert" shards the experts themselves (Expert.cpp). Where ranks share
/// features, places are sent and combined in slices of these
/// (ExpertSlices.cpp).
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_EXPERTS_EXPERTTOKENS_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_EXPERTS_EXPERTTOKENS_H

#include "ExpertDimensions.h"

namespace cleave::spmd {

/// Returns the type of the floating-point elements of `value`, or null.
mlir::FloatType floatTypeOf(mlir::Value value);

/// Returns a sharding of `value` that leaves all dimensions open.
Sharding openSharding(mlir::Value value);

/// The value that is sent in place of `value`: where all that reads it casts it
/// to one narrower type, the result of one cast, which the readers of the
/// others read then.
mlir::Value sentValue(mlir::Value value);

/// The axes that shard other dimensions of the weights of experts: over these,
/// what experts compute is a partial sum, in forward or in backward.
AxisList featureAxes(const Annotator &annotator,
                     const ExpertDimensions &experts);

/// Whether each element of the result of `op` needs one of each operand.
bool isElementwise(mlir::Operation *op);

/// Whether the op that reads `use` computes as many elements, each from one of
/// `use` and of smaller values.
bool scales(mlir::OpOperand &use);

/// Whether values between blocks are sharded over `axis` along the sequence.
bool shardsStreams(Annotator &annotator, const AxisRef &axis);

/// Whether experts are over ranks that share a sequence.
bool isOverSequence(const Annotator &annotator,
                    const ExpertDimensions &experts);

/// Whether partial sums over `featureAxes` in `value`, which experts compute,
/// can be scattered by features.
bool scattersFeatures(const Annotator &annotator,
                      const ExpertDimensions &experts, mlir::Value value);

/// Returns `value` scattered by features, which `sharding` has then.
mlir::Value scatterFeatures(Annotator &annotator, mlir::OpBuilder &builder,
                            const ExpertDimensions &experts, mlir::Value value,
                            Sharding &sharding);

/// Gathers the features of the tokens that are computed of what `operand`, at
/// which slices of outputs of experts are combined, reads: tokens are fewer
/// than places. Between blocks whose tokens are sharded over these axes they
/// stay scattered.
void gatherFeatures(Annotator &annotator, const ExpertDimensions &experts,
                    mlir::OpOperand &operand);

/// Keeps the features of the tokens that fill the slots of experts `result`
/// whole, where slices of their outputs would shard them.
void keepTokensWhole(Annotator &annotator, const ExpertDimensions &experts,
                     mlir::OpResult result);

/// Gathers the tokens that experts over `axis` read, over which no samples are
/// sharded, and shards their places by experts.
void gatherFolded(Annotator &annotator, mlir::func::FuncOp function,
                  const ExpertDimensions &experts,
                  const DimensionClasses &classes, llvm::StringRef axis);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_EXPERTS_EXPERTTOKENS_H
