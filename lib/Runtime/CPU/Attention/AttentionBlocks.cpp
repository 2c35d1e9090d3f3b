//===- AttentionBlocks.cpp - Blocks of attention --------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "AttentionBlocks.h"

#include <algorithm>
#include <numeric>
#include <tuple>

using namespace cleave::runtime;

/// Ranges of keys that are no further apart are one.
static constexpr int64_t leastGap = 64;
/// Queries of another document begin a block, unless fewer scores than this are
/// computed in vain in the same one.
static constexpr int64_t mostInVain = 1024;
/// The cost of a block besides its scores, in scores.
static constexpr int64_t blockCost = 1024;

//===----------------------------------------------------------------------===//
// Positions
//===----------------------------------------------------------------------===//

AttentionPositions::AttentionPositions(const AttentionCommand &c,
                                       const AttentionPointers &p)
    : c(c), p(p), shift(c.globalKeys - c.globalQueries) {
  if (p.origin)
    std::copy_n(p.origin, 4, origin);
}

int64_t AttentionPositions::queryPlace(int64_t i) const {
  if (!p.queryStarts)
    return origin[2] + i;
  int64_t piece = c.queries / c.queryPieces;
  return p.queryStarts[i / piece] + origin[2] + i % piece;
}

/// The number of keys of `block` with a position before `place`: these are the
/// first ones, since positions ascend.
int64_t AttentionPositions::keysBefore(int64_t block, int64_t place) const {
  int64_t keys = c.keys / c.blocks;
  place -= origin[3];
  if (!p.keyStarts)
    return std::clamp<int64_t>(place - block * keys, 0, keys);
  int64_t pieces = c.keyPieces / c.blocks, count = 0;
  for (int64_t i = block * pieces; i < (block + 1) * pieces; ++i)
    count += std::clamp<int64_t>(place - p.keyStarts[i], 0, keys / pieces);
  return count;
}

KeyRange AttentionPositions::visible(int64_t i) const {
  int64_t diagonal = queryPlace(i) + shift;
  int64_t block = c.blocks == 1 ? 0 : i / (c.queries / c.blocks);
  int64_t keys = c.keys / c.blocks, first = block * keys;
  int64_t end = c.causal ? keysBefore(block, diagonal + 1) : keys;
  int64_t begin =
      c.window > 0 ? std::min(keysBefore(block, diagonal - c.window + 1), end)
                   : 0;
  return {first + begin, first + end};
}

//===----------------------------------------------------------------------===//
// Ranges
//===----------------------------------------------------------------------===//

static int64_t sizeOf(const std::vector<KeyRange> &ranges) {
  int64_t size = 0;
  for (const KeyRange &range : ranges)
    size += range.size();
  return size;
}

/// Adds a range that begins at or behind those of `ranges`; returns whether it
/// is joined to the last one over keys between them.
static bool append(std::vector<KeyRange> &ranges, KeyRange range) {
  if (ranges.empty() || range.begin - ranges.back().end > leastGap) {
    ranges.push_back(range);
    return false;
  }
  bool gap = range.begin > ranges.back().end;
  ranges.back().end = std::max(ranges.back().end, range.end);
  return gap;
}

static void unite(const std::vector<KeyRange> &a,
                  const std::vector<KeyRange> &b,
                  std::vector<KeyRange> &result) {
  result.clear();
  size_t i = 0, j = 0;
  while (i < a.size() || j < b.size()) {
    bool fromA = j == b.size() || (i < a.size() && a[i].begin <= b[j].begin);
    append(result, fromA ? a[i++] : b[j++]);
  }
}

/// Finds the keys of each segment, ordered by segments.
void AttentionBlocks::findRuns(const AttentionCommand &c,
                               const int64_t *segments) {
  runs.clear();
  for (int64_t j = 0; j < c.keys; ++j)
    if (j > 0 && segments[j] == segments[j - 1])
      ++runs.back().end;
    else
      runs.push_back({segments[j], j, j + 1, true});
  auto before = [](const Run &a, const Run &b) {
    return std::tie(a.segment, a.begin) < std::tie(b.segment, b.begin);
  };
  if (!std::is_sorted(runs.begin(), runs.end(), before))
    std::sort(runs.begin(), runs.end(), before);
  size_t kept = 0;
  for (const Run &run : runs) {
    Run *last = kept ? &runs[kept - 1] : nullptr;
    if (last && last->segment == run.segment &&
        run.begin - last->end <= leastGap) {
      last->end = run.end;
      last->whole = false;
    } else {
      runs[kept++] = run;
    }
  }
  runs.resize(kept);
}

/// Finds the keys that queries [first, end) of one segment see; returns whether
/// all of them are of this segment.
bool AttentionBlocks::collect(const AttentionPositions &positions,
                              const int64_t *segments, int64_t first,
                              int64_t end, Ranges &seen) const {
  seen.clear();
  KeyRange all{positions.visible(first).begin, positions.visible(end - 1).end};
  if (all.begin >= all.end)
    return true;
  if (!segments) {
    seen.push_back(all);
    return true;
  }
  int64_t segment = segments[first];
  bool whole = true;
  auto run = std::partition_point(runs.begin(), runs.end(), [&](const Run &r) {
    return std::tie(r.segment, r.end) <= std::tie(segment, all.begin);
  });
  for (; run != runs.end() && run->segment == segment && run->begin < all.end;
       ++run) {
    whole &= run->whole;
    seen.push_back(
        {std::max(run->begin, all.begin), std::min(run->end, all.end)});
  }
  return whole;
}

//===----------------------------------------------------------------------===//
// Blocks
//===----------------------------------------------------------------------===//

/// Rows of a block. All of a block's rows compute the scores of keys that one
/// of them sees: with a short window these are many more than each sees.
static int64_t rowsOfBlock(const AttentionCommand &c) {
  if (c.window <= 0 || !c.causal)
    return c.queryBlock;
  int64_t rows = std::max<int64_t>(32, (c.window / 4 + 15) / 16 * 16);
  return std::min(c.queryBlock, rows);
}

void AttentionBlocks::addRow(const AttentionCommand &c,
                             const AttentionPointers &p,
                             const AttentionPositions &positions, int64_t row) {
  const int64_t *segments = nullptr;
  if (p.querySegments) {
    segments = p.querySegments + row * c.queries;
    findRuns(c, p.keySegments + row * c.keys);
  }
  // The end of queries of one segment, piece and block from `i` on.
  auto endOf = [&](int64_t i, int64_t limit) {
    for (int64_t parts : {c.queryPieces, c.blocks})
      if (parts > 1) {
        int64_t size = c.queries / parts;
        limit = std::min(limit, (i / size + 1) * size);
      }
    if (!segments)
      return limit;
    return std::find_if(segments + i, segments + limit,
                        [&](int64_t s) { return s != segments[i]; }) -
           segments;
  };
  size_t firstBlock = blocks.size();
  int64_t blockRows = rowsOfBlock(c);
  for (int64_t first = 0, end; first < c.queries; first = end) {
    int64_t limit = std::min(first + blockRows, c.queries);
    end = endOf(first, limit);
    bool same = collect(positions, segments, first, end, seen);
    while (end < limit) {
      int64_t next = endOf(end, limit);
      collect(positions, segments, end, next, more);
      unite(seen, more, both);
      int64_t apart =
          (end - first) * sizeOf(seen) + (next - end) * sizeOf(more);
      if ((next - first) * sizeOf(both) - apart > mostInVain)
        break;
      seen.swap(both);
      end = next;
      same = false;
    }
    AttentionBlock block{row, first, end - first, ranges.size(), 0, same, 0};
    for (KeyRange range : seen) {
      // Dropout draws for 64 scores at once.
      if (c.dropout > 0.0f && range.begin % 64 != 0) {
        range.begin &= ~int64_t(63);
        block.sameSegment = false;
      }
      if (ranges.size() > block.firstRange && range.begin <= ranges.back().end)
        ranges.back().end = range.end;
      else
        ranges.push_back(range);
      block.cost += block.count * range.size();
    }
    block.ranges = ranges.size() - block.firstRange;
    block.cost += blockCost;
    blocks.push_back(block);
  }
  addParts(c, row, firstBlock);
}

/// Divides the blocks of a row into parts that see different keys, and the
/// keys that none sees among them.
void AttentionBlocks::addParts(const AttentionCommand &c, int64_t row,
                               size_t firstBlock) {
  size_t firstPart = parts.size();
  for (size_t i = firstBlock; i < blocks.size(); ++i) {
    const AttentionBlock &block = blocks[i];
    AttentionPart part{row, i, 1, {}, block.cost};
    if (block.ranges)
      part.keys = {ranges[block.firstRange].begin,
                   ranges[block.firstRange + block.ranges - 1].end};
    // A block without keys belongs to any part.
    while (parts.size() > firstPart &&
           (part.keys.size() == 0 || part.keys.begin < parts.back().keys.end)) {
      AttentionPart &last = parts.back();
      if (part.keys.size() == 0)
        part.keys = last.keys;
      else if (last.keys.size() != 0)
        part.keys = {std::min(part.keys.begin, last.keys.begin),
                     std::max(part.keys.end, last.keys.end)};
      part.firstBlock = last.firstBlock;
      part.blocks += last.blocks;
      part.cost += last.cost;
      parts.pop_back();
      if (part.keys.size() == 0)
        break;
    }
    parts.push_back(part);
  }
  if (parts.size() == firstPart)
    parts.push_back({row, firstBlock, 0, {}, 0});
  int64_t end = 0;
  for (size_t i = firstPart; i < parts.size(); ++i) {
    parts[i].keys.begin = end;
    end = parts[i].keys.end = std::max(end, parts[i].keys.end);
  }
  parts.back().keys.end = c.keys;
}

/// Orders the indices of `items` by cost, the largest first.
template <typename Item>
static void orderByCost(const std::vector<Item> &items,
                        std::vector<size_t> &order) {
  order.resize(items.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return items[a].cost != items[b].cost ? items[a].cost > items[b].cost
                                          : a < b;
  });
}

void AttentionBlocks::build(const AttentionCommand &c,
                            const AttentionPointers &p) {
  blocks.clear();
  ranges.clear();
  parts.clear();
  rows = p.querySegments ? c.batch : 1;
  AttentionPositions positions(c, p);
  for (int64_t row = 0; row < rows; ++row)
    addRow(c, p, positions, row);
  orderByCost(blocks, blockOrder);
  orderByCost(parts, partOrder);
}
