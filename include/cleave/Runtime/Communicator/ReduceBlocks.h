//===- ReduceBlocks.h - Copying and reducing blocks -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Memory operations that all communicators share. Elements of a block are
/// numbered in row-major order of its dimensions; a rank's share is a range of
/// numbers.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_COMMUNICATOR_REDUCEBLOCKS_H
#define CLEAVE_RUNTIME_COMMUNICATOR_REDUCEBLOCKS_H

#include "cleave/Runtime/Communicator/Communicator.h"
#include <algorithm>
#include <string>

namespace cleave::runtime {

/// A block with its strides for reading and for writing; dimensions that are
/// contiguous in both are merged. There is at least one dimension.
struct Block {
  int dims = 0;
  int64_t sizes[CLEAVE_BLOCK_DIMS];
  int64_t src[CLEAVE_BLOCK_DIMS], dst[CLEAVE_BLOCK_DIMS];
  int64_t elements = 1;

  Block() = default;
  Block(int count, const int64_t *sizes, const int64_t *src,
        const int64_t *dst);
};

/// Strides of a dense block.
void denseStrides(int count, const int64_t *sizes, int64_t *strides);

/// Bytes of an element; 0 for an unknown type.
int64_t elementBytes(int32_t dtype);

/// Why a collective of `count` blocks is invalid in a group of `members`, or
/// "".
std::string checkCollective(const cleave_collective *blocks, int count,
                            int members);

/// All properties of a checked collective that must be equal on its members, as
/// bytes.
std::string commonOf(const cleave_collective *blocks, int count, int members);

/// A text such as "an all-reduce of 8 elements of f32", for all blocks.
std::string describe(int32_t kind, int32_t dtype, int64_t elements);

/// The number of elements of all blocks.
int64_t countElements(const cleave_collective *blocks, int count);

/// Why `count` ranks are not a group with `rank`, one of `size`, or ""; sets
/// the index of the rank in the group.
std::string checkGroup(const int32_t *ranks, int32_t count, int32_t rank,
                       int32_t size, int &member);

/// Copies the elements [begin, end).
void copyBlock(const Block &block, int64_t elementBytes, const void *src,
               void *dst, int64_t begin, int64_t end);

/// Writes the elements [begin, end) of `readers` blocks, combined in order, to
/// each of `writers` blocks. An output may be one of the inputs.
void reduceBlocks(const Block &block, int32_t dtype, int32_t reduction,
                  const void *const *srcs, int readers, void *const *dsts,
                  int writers, int64_t begin, int64_t end);

/// The `index`-th of `count` nearly equal shares of [0, n), at multiples of 64
/// elements so that no two ranks write to one cache line of dense memory.
inline int64_t shareBegin(int64_t n, int64_t index, int64_t count) {
  int64_t lines = (n + 63) / 64;
  return std::min(n, lines * index / count * 64);
}

/// Splits [begin, end) among the threads of a team.
template <typename F>
void splitAmong(const cleave_team &team, int64_t begin, int64_t end,
                const F &body) {
  constexpr int64_t grain = 1 << 15;
  int64_t n = end - begin;
  if (n <= 0)
    return;
  if (team.threads <= 1 || n < 2 * grain)
    return body(begin, end);
  struct Work {
    int64_t begin, n;
    const F *body;
  } work{begin, n, &body};
  team.run(
      team.context,
      [](void *data, int32_t thread, int32_t count) {
        auto &w = *static_cast<Work *>(data);
        int64_t from = shareBegin(w.n, thread, count),
                to = shareBegin(w.n, thread + 1, count);
        if (from < to)
          (*w.body)(w.begin + from, w.begin + to);
      },
      &work);
}

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_COMMUNICATOR_REDUCEBLOCKS_H
