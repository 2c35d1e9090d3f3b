//===- Shards.h - Slicing and joining tensors -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_INTERPRETER_SHARDS_H
#define CLEAVE_LIB_INTERPRETER_SHARDS_H

#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Interpreter/RefTensor.h"

namespace cleave {

/// The sum (max, min) of `parts`: in a binary tree (TreeOrder.h), as devices
/// sum, or one after the other.
RefTensor combineParts(llvm::ArrayRef<const RefTensor *> parts,
                       spmd::ReductionKind kind, Precision precision,
                       bool inTree = true);

/// Where the shard of position `rank` begins in a tensor of `shape`.
llvm::SmallVector<int64_t, 4> shardOffsets(const spmd::Mesh &mesh,
                                           const spmd::Sharding &sharding,
                                           llvm::ArrayRef<int64_t> shape,
                                           int64_t rank);

/// The shard of `whole` that position `rank` holds.
RefTensor cutShard(const spmd::Mesh &mesh, const spmd::Sharding &sharding,
                   const RefTensor &whole, int64_t rank);

/// The tensor of `shape` whose shards are `shards[r]`, in the order of
/// positions; nothing if replicas of a shard differ.
std::optional<RefTensor> joinShards(const spmd::Mesh &mesh,
                                    const spmd::Sharding &sharding,
                                    llvm::ArrayRef<int64_t> shape,
                                    llvm::ArrayRef<const RefTensor *> shards);

} // namespace cleave

#endif // CLEAVE_LIB_INTERPRETER_SHARDS_H
