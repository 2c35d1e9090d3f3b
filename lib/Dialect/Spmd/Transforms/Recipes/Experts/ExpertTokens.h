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
/// "expert" shards the experts themselves (Expert.cpp).
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

/// The axes that shard other dimensions of the weights of experts: over these,
/// what experts compute is a partial sum, in forward or in backward.
AxisList featureAxes(const Annotator &annotator,
                     const ExpertDimensions &experts);

/// Gathers the tokens that experts over `axis` read, over which no samples are
/// sharded, and shards their places by experts.
void gatherFolded(Annotator &annotator, mlir::func::FuncOp function,
                  const ExpertDimensions &experts,
                  const DimensionClasses &classes, llvm::StringRef axis);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_EXPERTS_EXPERTTOKENS_H
