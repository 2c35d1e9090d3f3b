//===- Blocks.h - Copying and combining blocks ------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// What all communicators do with memory. Elements of a block are numbered in
/// row-major order of its dimensions; a rank's share is a range of numbers.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_COMMUNICATOR_BLOCKS_H
#define CLEAVE_LIB_RUNTIME_COMMUNICATOR_BLOCKS_H

#include "cleave/Runtime/Communicator.h"
#include <algorithm>
#include <string>

namespace cleave::runtime {

/// A block as it is read and as it is written; dimensions that follow on in
/// both places are one. There is at least one dimension.
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

/// Why a collective of `count` blocks makes no sense in a group of `members`,
/// or "".
std::string checkCollective(const cleave_collective *blocks, int count,
                            int members);

/// Copies the elements [begin, end).
void copyBlock(const Block &block, int64_t elementBytes, const void *src,
               void *dst, int64_t begin, int64_t end);

/// Writes to each of `writers` places the elements [begin, end) of `readers`
/// blocks, combined in order. A place may be one of the blocks itself.
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

#endif // CLEAVE_LIB_RUNTIME_COMMUNICATOR_BLOCKS_H
