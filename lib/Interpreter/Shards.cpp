//===- Shards.cpp - Slicing and joining tensors ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Shards.h"
#include "cleave/Support/TreeOrder.h"
#include <cmath>

using namespace mlir;
using namespace cleave;

/// Combines `from` into `into`.
static void combine(RefTensor &into, const RefTensor &from,
                    spmd::ReductionKind kind, bool inF32) {
  for (auto [sum, x] : llvm::zip_equal(into.floats, from.floats)) {
    if (kind == spmd::ReductionKind::Sum)
      sum = inF32 ? static_cast<float>(sum + x) : sum + x;
    else if (!std::isnan(sum))
      sum = std::isnan(x)                      ? x
            : kind == spmd::ReductionKind::Max ? std::max(sum, x)
                                               : std::min(sum, x);
  }
  for (auto [sum, x] : llvm::zip_equal(into.ints, from.ints)) {
    if (kind == spmd::ReductionKind::Sum)
      sum = int64_t(uint64_t(sum) + uint64_t(x));
    else
      sum = kind == spmd::ReductionKind::Max ? std::max(sum, x)
                                             : std::min(sum, x);
  }
}

RefTensor cleave::combineParts(ArrayRef<const RefTensor *> parts,
                               spmd::ReductionKind kind, Precision precision,
                               bool inTree) {
  bool inF32 = accumulatesInF32(parts.front()->element, precision);
  // Sums of 1, 2, 4, ... addends: two of one size become one of the next.
  SmallVector<RefTensor, 1> sums;
  auto merge = [&] {
    RefTensor last = sums.pop_back_val();
    combine(sums.back(), last, kind, inF32);
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    sums.push_back(*parts[inTree ? treeOrder(i, parts.size()) : i]);
    for (size_t count = i + 1; inTree && count % 2 == 0; count /= 2)
      merge();
    if (!inTree && i > 0)
      merge();
  }
  while (sums.size() > 1)
    merge();
  return std::move(sums.front());
}

SmallVector<int64_t, 4> cleave::shardOffsets(const spmd::Mesh &mesh,
                                             const spmd::Sharding &sharding,
                                             ArrayRef<int64_t> shape,
                                             int64_t rank) {
  SmallVector<int64_t, 4> coordinates = mesh.coordinates(rank), offsets;
  for (auto [axes, size] : llvm::zip_equal(sharding.dims, shape))
    offsets.push_back(mesh.partIndex(axes, coordinates) *
                      (size / mesh.size(axes)));
  return offsets;
}

RefTensor cleave::cutShard(const spmd::Mesh &mesh,
                           const spmd::Sharding &sharding,
                           const RefTensor &whole, int64_t rank) {
  SmallVector<int64_t> shape;
  for (auto [axes, size] : llvm::zip_equal(sharding.dims, whole.shape))
    shape.push_back(size / mesh.size(axes));
  return cutSlice(whole, shardOffsets(mesh, sharding, whole.shape, rank),
                  shape);
}

std::optional<RefTensor>
cleave::joinShards(const spmd::Mesh &mesh, const spmd::Sharding &sharding,
                   ArrayRef<int64_t> shape,
                   ArrayRef<const RefTensor *> shards) {
  RefTensor whole(shape, shards.front()->element);
  for (auto [rank, shard] : llvm::enumerate(shards))
    pasteSlice(whole, shardOffsets(mesh, sharding, shape, rank), *shard);
  for (auto [rank, shard] : llvm::enumerate(shards))
    if (!sameElements(cutShard(mesh, sharding, whole, rank), *shard))
      return std::nullopt;
  return whole;
}
