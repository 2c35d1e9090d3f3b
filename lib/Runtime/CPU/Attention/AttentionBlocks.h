//===- AttentionBlocks.h - Blocks of attention ------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The blocks of queries of an attention, and the ranges of keys that each
/// sees, made once for all heads of a launch. Documents that are packed in a
/// row have blocks of their own, so that they cost what each alone costs.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_CPU_ATTENTION_ATTENTIONBLOCKS_H
#define CLEAVE_LIB_RUNTIME_CPU_ATTENTION_ATTENTIONBLOCKS_H

#include "cleave/Runtime/CPU/Attention.h"
#include <vector>

namespace cleave::runtime {

struct KeyRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

/// The keys that positions let queries see.
class AttentionPositions {
public:
  AttentionPositions(const AttentionCommand &c, const AttentionPointers &p);

  /// The position of query `i` in the global scores.
  int64_t queryPlace(int64_t i) const;
  /// First and one past the last key that position lets query `i` see. Both
  /// grow with the query.
  KeyRange visible(int64_t i) const;

  int64_t origin[4] = {0, 0, 0, 0};

private:
  int64_t keysBefore(int64_t block, int64_t place) const;

  const AttentionCommand &c;
  const AttentionPointers &p;
  /// The distance by which a causal query sees keys beyond its own position.
  int64_t shift;
};

/// Queries [first, first + count) and `ranges` ranges of keys from
/// `firstRange` on.
struct AttentionBlock {
  int64_t row, first, count;
  size_t firstRange, ranges;
  /// Whether all its keys are of the segment of all its queries.
  bool sameSegment;
  int64_t cost;
};

/// Blocks from `firstBlock` on, that alone see `keys`.
struct AttentionPart {
  int64_t row;
  size_t firstBlock, blocks;
  KeyRange keys;
  int64_t cost;
};

class AttentionBlocks {
public:
  /// Makes the blocks. The memory of earlier ones is used again.
  void build(const AttentionCommand &c, const AttentionPointers &p);

  /// The number of rows with blocks of their own: that of batches, or 1 if all
  /// have the same.
  int64_t rows = 1;
  /// By row, and by the first query.
  std::vector<AttentionBlock> blocks;
  std::vector<KeyRange> ranges;
  /// By row, and by the first key. Each row has at least one, and its parts
  /// have all its keys.
  std::vector<AttentionPart> parts;
  /// Blocks and parts in the order in which they are begun: those that cost
  /// most come first.
  std::vector<size_t> blockOrder, partOrder;

private:
  /// Keys of one segment; `whole` if all keys of the range are.
  struct Run {
    int64_t segment, begin, end;
    bool whole;
  };
  using Ranges = std::vector<KeyRange>;

  void findRuns(const AttentionCommand &c, const int64_t *segments);
  void addRow(const AttentionCommand &c, const AttentionPointers &p,
              const AttentionPositions &positions, int64_t row);
  void addParts(const AttentionCommand &c, int64_t row, size_t firstBlock);
  bool collect(const AttentionPositions &positions, const int64_t *segments,
               int64_t first, int64_t end, Ranges &seen) const;

  std::vector<Run> runs;
  Ranges seen, more, both;
};

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_CPU_ATTENTION_ATTENTIONBLOCKS_H
