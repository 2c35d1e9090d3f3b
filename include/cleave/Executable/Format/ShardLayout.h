//===- ShardLayout.h - The shard of each rank -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The program of a pipeline position is the same for all its ranks; a rank's
/// shard of each tensor depends on its number, which is that of its device.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_FORMAT_SHARDLAYOUT_H
#define CLEAVE_EXECUTABLE_FORMAT_SHARDLAYOUT_H

#include "cleave/Executable/Format/Program.h"
#include "llvm/ADT/STLFunctionalExtras.h"

namespace cleave::runtime {

/// The number of devices: positions on the axes that are not sequential.
int64_t deviceCount(const std::vector<MeshAxis> &mesh);

/// The pipeline position of a rank.
int64_t positionOf(const Program &program, int64_t rank);

/// The combined value of the digits, major to minor, for a rank.
int64_t partIndex(const std::vector<MeshAxis> &mesh,
                  const std::vector<Digit> &digits, int64_t rank);

/// The product of the sizes of digits.
int64_t partCount(const std::vector<Digit> &digits);

/// The ranks that differ from `rank` only in `digits`, itself included, in the
/// order of the value of these digits.
std::vector<int32_t> groupOf(const std::vector<MeshAxis> &mesh,
                             const std::vector<Digit> &digits, int64_t rank);

int64_t evaluate(const std::vector<MeshAxis> &mesh, const DeviceValue &value,
                 int64_t rank);

/// Digits as text, such as "dp" or "dp,tp:(1)2".
std::string axesText(const std::vector<MeshAxis> &mesh,
                     const std::vector<Digit> &digits);

/// The shape of each rank's shard of `tensor`, padding included.
std::vector<int64_t> localShape(const std::vector<MeshAxis> &mesh,
                                const Tensor &tensor);
/// Its bytes; those of the whole tensor if it is replicated.
int64_t localBytes(const std::vector<MeshAxis> &mesh, const Tensor &tensor);

/// Whether each rank holds the whole tensor.
bool isWhole(const std::vector<MeshAxis> &mesh, const Tensor &tensor);

/// The index of a rank's shard among the distinct shards of `tensor`; ranks
/// with the same index hold the same shard.
int64_t partOf(const std::vector<MeshAxis> &mesh, const Tensor &tensor,
               int64_t rank);

/// Copies a rank's shard from the whole tensor, or to it. Only shards have
/// padding: it is zero when slicing, and dropped when joining.
void cutPart(const std::vector<MeshAxis> &mesh, const Tensor &tensor,
             int64_t rank, const void *whole, void *part);
/// The same, by `copy(from, to, count)` for each run of elements that is
/// contiguous in both: from the element `from` of the whole tensor to the
/// element `to` of the shard, whose padding is zero.
void cutPart(const std::vector<MeshAxis> &mesh, const Tensor &tensor,
             int64_t rank, void *part,
             llvm::function_ref<void(int64_t, int64_t, int64_t)> copy);
void joinPart(const std::vector<MeshAxis> &mesh, const Tensor &tensor,
              int64_t rank, const void *part, void *whole);

} // namespace cleave::runtime

#endif // CLEAVE_EXECUTABLE_FORMAT_SHARDLAYOUT_H
