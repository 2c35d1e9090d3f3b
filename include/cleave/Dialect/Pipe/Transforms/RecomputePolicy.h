//===- RecomputePolicy.h - What backward may recompute ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_PIPE_TRANSFORMS_RECOMPUTEPOLICY_H
#define CLEAVE_DIALECT_PIPE_TRANSFORMS_RECOMPUTEPOLICY_H

#include "llvm/ADT/StringRef.h"
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cleave::pipe {

/// What backward may recompute of a block, or of what is outside of blocks.
struct RecomputeChoice {
  /// Element-wise and row-wise ops, and copies of slices.
  bool free = false;
  /// The core of an attention that is not one op.
  bool selective = false;
  /// All of a block: only what another block reads is saved.
  bool full = false;
  /// All of what the model runs in torch.utils.checkpoint, from what it reads.
  /// Blocks are then these regions, in a model that has any.
  bool regions = false;
  /// If positive, all of a block may be recomputed where that pays: a second of
  /// recomputation is worth so many saved bytes.
  double price = 0;

  bool operator==(const RecomputeChoice &) const = default;
};

/// The choices for all blocks of a model.
struct RecomputePolicy {
  /// Of each block; the last choice is that of all further ones.
  std::vector<RecomputeChoice> blocks{{/*free=*/true}};
  /// Of what is outside of blocks.
  RecomputeChoice outside{/*free=*/true};

  /// Whether a choice is of the model's checkpoint regions.
  bool hasRegions() const {
    return std::any_of(blocks.begin(), blocks.end(),
                       [](const RecomputeChoice &c) { return c.regions; });
  }

  /// Parses `free,selective` (or `price=<bytes>`) for all blocks, or a choice
  /// for each, as in `3 full; 5 free,selective; none`, where the last one is
  /// that of all further blocks. `outside` before a choice is of what is
  /// outside of blocks, by default `free` if any block has it. Lines may end
  /// with a comment after
  /// `#`. On failure returns nothing and sets `error`.
  static std::optional<RecomputePolicy> parse(llvm::StringRef text,
                                              std::string &error);
  std::string str() const;

  /// The choice of a block, and with -1 of what is outside of blocks.
  const RecomputeChoice &of(int64_t block) const {
    return block < 0 ? outside
                     : blocks[std::min<size_t>(block, blocks.size() - 1)];
  }
};

} // namespace cleave::pipe

#endif // CLEAVE_DIALECT_PIPE_TRANSFORMS_RECOMPUTEPOLICY_H
