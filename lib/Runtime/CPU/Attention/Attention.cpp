//===- Attention.cpp - Blockwise attention --------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// Both passes iterate over blocks of query rows. A block sees one or several
// ranges of keys (all of them without causality, window or segments), and only
// these are computed.
//
// The forward pass holds a block of scores over a whole range, so that the
// softmax needs one pass, and joins the ranges; the backward pass, which knows
// the sums already, splits them into chunks that fit the second-level cache.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/CPU/Attention.h"
#include "AttentionBlocks.h"
#include "AttentionRows.h"
#include "cleave/Runtime/CPU/Contraction.h"

#include <algorithm>
#include <cmath>
#include <limits>

using namespace cleave::runtime;

static constexpr float infinity = std::numeric_limits<float>::infinity();
/// Keys of a chunk in the backward pass.
static constexpr int64_t keyChunk = 512;

static int64_t roundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// Elements from one row of scores to the next: rows must not all start at the
/// same offset in a page.
static int64_t scoreStride(int64_t keys) {
  int64_t stride = roundUp(keys, 64);
  return stride % 256 == 0 ? stride + 16 : stride;
}

/// The longest range of keys that one block of queries sees.
static int64_t longestRange(const AttentionCommand &c) {
  int64_t keys = roundUp(c.keys, 64);
  // A window alone masks no later key; and the positions of queries that are
  // computed together may be far apart.
  if (c.window > 0 && c.causal && c.queryPieces == 0 && c.blocks == 1)
    keys = std::min(keys, roundUp(c.window + c.queryBlock, 64) + 64);
  return keys;
}

int64_t cleave::runtime::attentionScratchBytes(const AttentionCommand &c,
                                               bool backward) {
  int64_t keys = longestRange(c);
  if (backward)
    keys = std::min(keys, keyChunk);
  int64_t floats = c.queryBlock * scoreStride(keys) * (backward ? 2 : 1) +
                   roundUp(c.queryBlock, 16);
  return roundUp(floats * 4, 64);
}

namespace {

/// The log-sum-exp of a row, as a sum of two numbers, so that a huge bias does
/// not hide the sum.
struct LogSum {
  float largest = -infinity, rest = 0.0f;
};

class Pass {
public:
  Pass(const AttentionCommand &c, const AttentionPointers &p,
       const AttentionBlocks &blocks)
      : c(c), p(p), blocks(blocks), rows(*getAttentionRows()), positions(c, p) {
    if (c.dropout > 0.0f)
      stream = {static_cast<uint64_t>(p.rng[0]),
                static_cast<uint32_t>(c.dropoutId),
                static_cast<uint32_t>(p.rng[1])};
  }

  void forwardBlock(int64_t b, int64_t h, const AttentionBlock &block,
                    char *scratch) const;
  /// The blocks of `part` of all query heads that share one key head.
  void backwardPart(int64_t b, int64_t kvHead, const AttentionPart &part,
                    char *scratch) const;

private:
  const float *head(const float *base, const HeadView &v, int64_t b,
                    int64_t h) const {
    return base + b * v.strideBatch + h * v.strideHead;
  }
  float *head(float *base, const HeadView &v, int64_t b, int64_t h) const {
    return base + b * v.strideBatch + h * v.strideHead;
  }

  /// Describes the row of query `i` of a block over the keys from `key0` on.
  AttentionRow makeRow(int64_t b, int64_t h, const AttentionBlock &block,
                       int64_t i, int64_t key0, int64_t keys,
                       float *scores) const {
    AttentionRow row;
    row.scores = scores;
    row.width = roundUp(keys, 64);
    KeyRange see = positions.visible(i);
    row.begin = std::clamp<int64_t>(see.begin - key0, 0, keys);
    row.end = std::clamp<int64_t>(see.end - key0, row.begin, keys);
    if (p.bias) {
      row.bias = p.bias + b * c.biasStrides[0] + h * c.biasStrides[1] +
                 i * c.biasStrides[2] +
                 extraKey(c.biasStrides, i, key0) * c.biasStrides[3];
      row.biasStride = c.biasStrides[3];
    }
    if (p.mask) {
      row.mask = p.mask + b * c.maskStrides[0] + h * c.maskStrides[1] +
                 i * c.maskStrides[2] +
                 extraKey(c.maskStrides, i, key0) * c.maskStrides[3];
      row.maskStride = c.maskStrides[3];
    }
    if (p.querySegments && !block.sameSegment) {
      row.keySegments = p.keySegments + b * c.keys + key0;
      row.querySegment = p.querySegments[b * c.queries + i];
    }
    if (c.dropout > 0.0f) {
      row.stream = &stream;
      row.threshold = philox::threshold(c.dropout);
      row.keepScale = philox::keepScale(c.dropout);
      uint64_t index = static_cast<uint64_t>(positions.origin[0] + b);
      index = index * static_cast<uint64_t>(c.globalHeads) +
              static_cast<uint64_t>(positions.origin[1] + h);
      index = index * static_cast<uint64_t>(c.globalQueries) +
              static_cast<uint64_t>(positions.queryPlace(i));
      row.element = index * static_cast<uint64_t>(roundUp(c.globalKeys, 64)) +
                    static_cast<uint64_t>(positions.origin[3]);
      if (p.keyStarts) {
        row.keyStarts = p.keyStarts;
        row.pieces = c.keyPieces;
        row.pieceKeys = c.keys / c.keyPieces;
        row.firstKey = key0;
      } else {
        row.element += static_cast<uint64_t>(key0);
      }
    }
    return row;
  }

  void forwardRange(int64_t b, int64_t h, const AttentionBlock &block,
                    KeyRange range, bool onto, char *scratch) const;
  void backwardBlock(int64_t b, int64_t h, const AttentionBlock &block,
                     char *scratch) const;
  void backwardKeys(int64_t b, int64_t h, const AttentionBlock &block,
                    KeyRange range, bool more, char *scratch) const;
  /// The index of `key` in a bias or mask, of query `i`.
  int64_t extraKey(const int64_t (&strides)[4], int64_t i, int64_t key) const {
    if (c.blocks == 1 || strides[2] == 0)
      return key;
    return key - i / (c.queries / c.blocks) * (c.keys / c.blocks);
  }

  /// The log-sum-exp of row `row`, counted over all batches and heads: two
  /// numbers with a bias.
  LogSum readSum(int64_t row) const {
    if (p.bias)
      return {p.lse[2 * row], p.lse[2 * row + 1]};
    return {p.lse[row], 0.0f};
  }
  void writeSum(int64_t row, LogSum sum) const {
    if (!p.bias) {
      p.lse[row] = sum.largest + sum.rest;
      return;
    }
    p.lse[2 * row] = sum.largest;
    p.lse[2 * row + 1] = sum.rest;
  }

  const AttentionCommand &c;
  const AttentionPointers &p;
  const AttentionBlocks &blocks;
  const AttentionRowFunctions &rows;
  AttentionPositions positions;
  philox::Stream stream;
};

} // namespace

/// Adds `own` to `total`; `share` is the part of `own`, and that of the
/// previous total is returned. If neither sees a key nothing changes.
static float join(LogSum &total, const LogSum &own, float &share) {
  float top = total.largest > own.largest ? total.largest : own.largest;
  if (top == -infinity)
    return 1.0f;
  float before = std::exp(total.largest - top + total.rest);
  float added = std::exp(own.largest - top + own.rest);
  float sum = before + added;
  total = {top, std::log(sum)};
  share = added / sum;
  return before / sum;
}

void Pass::forwardBlock(int64_t b, int64_t h, const AttentionBlock &block,
                        char *scratch) const {
  if (block.ranges == 0 && !c.onto) {
    float *o = head(p.o, c.o, b, h) + block.first * c.o.stridePosition;
    int64_t row = (b * c.heads + h) * c.queries + block.first;
    for (int64_t i = 0; i < block.count; ++i) {
      std::fill_n(o + i * c.o.stridePosition, c.valueSize, 0.0f);
      writeSum(row + i, LogSum());
    }
  }
  for (size_t i = 0; i < block.ranges; ++i)
    forwardRange(b, h, block, blocks.ranges[block.firstRange + i],
                 c.onto || i > 0, scratch);
}

/// Computes the result on one range of keys, or, with `onto`, on it and those
/// before.
void Pass::forwardRange(int64_t b, int64_t h, const AttentionBlock &block,
                        KeyRange range, bool onto, char *scratch) const {
  int64_t first = block.first, count = block.count;
  int64_t kvHead = h / (c.heads / c.kvHeads);
  float *o = head(p.o, c.o, b, h) + first * c.o.stridePosition;
  int64_t row = (b * c.heads + h) * c.queries + first;
  int64_t key0 = range.begin, keys = range.size();
  auto *scores = reinterpret_cast<float *>(scratch);
  int64_t stride = scoreStride(keys);
  float *factors = scores + c.queryBlock * scoreStride(longestRange(c));

  sgemm(false, true, count, keys, c.headSize, c.scale,
        head(p.q, c.q, b, h) + first * c.q.stridePosition, c.q.stridePosition,
        head(p.k, c.k, b, kvHead) + key0 * c.k.stridePosition,
        c.k.stridePosition, 0.0f, scores, stride);
  for (int64_t i = 0; i < count; ++i) {
    LogSum own;
    factors[i] = rows.forward(
        makeRow(b, h, block, first + i, key0, keys, scores + i * stride),
        own.largest, own.rest);
    if (onto) {
      // Scales the existing result and the new probabilities by their weights.
      float share = 1.0f;
      LogSum total = readSum(row + i);
      rows.scale(o + i * c.o.stridePosition, join(total, own, share),
                 c.valueSize);
      rows.scale(scores + i * stride, factors[i] * share, keys);
      own = total;
    }
    writeSum(row + i, own);
  }
  sgemm(false, false, count, c.valueSize, keys, 1.0f, scores, stride,
        head(p.v, c.v, b, kvHead) + key0 * c.v.stridePosition,
        c.v.stridePosition, onto ? 1.0f : 0.0f, o, c.o.stridePosition);
  if (onto)
    return;
  for (int64_t i = 0; i < count; ++i)
    rows.scale(o + i * c.o.stridePosition, factors[i], c.valueSize);
}

void Pass::backwardBlock(int64_t b, int64_t h, const AttentionBlock &block,
                         char *scratch) const {
  int64_t first = block.first, count = block.count;
  if (block.ranges == 0) {
    float *dQ = head(p.dQ, c.dQ, b, h) + first * c.dQ.stridePosition;
    for (int64_t i = 0; i < count; ++i)
      std::fill_n(dQ + i * c.dQ.stridePosition, c.headSize, 0.0f);
    return;
  }
  const float *o = head(static_cast<const float *>(p.o), c.o, b, h) +
                   first * c.o.stridePosition;
  const float *dO = head(p.dO, c.dO, b, h) + first * c.dO.stridePosition;
  int64_t chunk = std::min(longestRange(c), keyChunk);
  float *dots = reinterpret_cast<float *>(scratch) +
                2 * c.queryBlock * scoreStride(chunk);
  for (int64_t i = 0; i < count; ++i)
    dots[i] = rows.dot(dO + i * c.dO.stridePosition, o + i * c.o.stridePosition,
                       c.valueSize);
  bool more = false;
  for (size_t i = 0; i < block.ranges; ++i) {
    KeyRange range = blocks.ranges[block.firstRange + i];
    for (int64_t key = range.begin; key < range.end; key += chunk) {
      backwardKeys(b, h, block, {key, std::min(key + chunk, range.end)}, more,
                   scratch);
      more = true;
    }
  }
}

/// Adds the gradients that come from at most a chunk of keys; with `more`, to
/// those of the queries as well.
void Pass::backwardKeys(int64_t b, int64_t h, const AttentionBlock &block,
                        KeyRange range, bool more, char *scratch) const {
  int64_t first = block.first, count = block.count;
  int64_t kvHead = h / (c.heads / c.kvHeads);
  int64_t key = range.begin, keys = range.size();
  const float *q = head(p.q, c.q, b, h) + first * c.q.stridePosition;
  const float *dO = head(p.dO, c.dO, b, h) + first * c.dO.stridePosition;
  float *dQ = head(p.dQ, c.dQ, b, h) + first * c.dQ.stridePosition;
  int64_t row = (b * c.heads + h) * c.queries + first;
  int64_t stride = scoreStride(std::min(longestRange(c), keyChunk));
  auto *scores = reinterpret_cast<float *>(scratch);
  float *gradients = scores + c.queryBlock * stride;
  const float *dots = gradients + c.queryBlock * stride;
  const float *k = head(p.k, c.k, b, kvHead) + key * c.k.stridePosition;
  const float *v = head(p.v, c.v, b, kvHead) + key * c.v.stridePosition;
  float *dK = head(p.dK, c.dK, b, kvHead) + key * c.dK.stridePosition;
  float *dV = head(p.dV, c.dV, b, kvHead) + key * c.dV.stridePosition;
  sgemm(false, true, count, keys, c.headSize, c.scale, q, c.q.stridePosition, k,
        c.k.stridePosition, 0.0f, scores, stride);
  sgemm(false, true, count, keys, c.valueSize, 1.0f, dO, c.dO.stridePosition, v,
        c.v.stridePosition, 0.0f, gradients, stride);
  for (int64_t i = 0; i < count; ++i) {
    float *dBias = nullptr;
    int64_t dBiasStride = 0;
    if (p.dBias) {
      // Dense, in the bias's own broadcast shape.
      int64_t sizes[4] = {c.batch, c.heads, c.queries, c.keysOf(c.biasStrides)};
      int64_t index[4] = {b, h, first + i,
                          extraKey(c.biasStrides, first + i, key)};
      int64_t step = 1, offset = 0;
      for (int d = 3; d >= 0; --d) {
        if (c.biasStrides[d] == 0)
          continue;
        offset += index[d] * step;
        if (d == 3)
          dBiasStride = 1;
        step *= sizes[d];
      }
      dBias = p.dBias + offset;
    }
    LogSum sum = readSum(row + i);
    rows.backward(
        makeRow(b, h, block, first + i, key, keys, scores + i * stride),
        gradients + i * stride, sum.largest, sum.rest, dots[i], dBias,
        dBiasStride);
  }
  sgemm(true, false, keys, c.valueSize, count, 1.0f, scores, stride, dO,
        c.dO.stridePosition, 1.0f, dV, c.dV.stridePosition);
  sgemm(true, false, keys, c.headSize, count, c.scale, gradients, stride, q,
        c.q.stridePosition, 1.0f, dK, c.dK.stridePosition);
  sgemm(false, false, count, c.headSize, keys, c.scale, gradients, stride, k,
        c.k.stridePosition, more ? 1.0f : 0.0f, dQ, c.dQ.stridePosition);
}

void Pass::backwardPart(int64_t b, int64_t kvHead, const AttentionPart &part,
                        char *scratch) const {
  float *dK = head(p.dK, c.dK, b, kvHead);
  float *dV = head(p.dV, c.dV, b, kvHead);
  for (int64_t j = part.keys.begin; j < part.keys.end; ++j) {
    std::fill_n(dK + j * c.dK.stridePosition, c.headSize, 0.0f);
    std::fill_n(dV + j * c.dV.stridePosition, c.valueSize, 0.0f);
  }
  int64_t group = c.heads / c.kvHeads;
  for (int64_t h = kvHead * group; h < (kvHead + 1) * group; ++h)
    for (size_t i = 0; i < part.blocks; ++i)
      backwardBlock(b, h, blocks.blocks[part.firstBlock + i], scratch);
}

/// The blocks of a launch, in memory that the thread keeps for the next one.
static const AttentionBlocks &blocksOf(const AttentionCommand &c,
                                       const AttentionPointers &p) {
  static thread_local AttentionBlocks blocks;
  blocks.build(c, p);
  return blocks;
}

void cleave::runtime::attentionForward(const AttentionCommand &c,
                                       const AttentionPointers &p,
                                       const ThreadTeam &team) {
  const AttentionBlocks &blocks = blocksOf(c, p);
  Pass pass(c, p, blocks);
  // The heads of one block after another; those that cost most come first.
  int64_t heads = c.batch / blocks.rows * c.heads;
  auto items = static_cast<int64_t>(blocks.blocks.size()) * heads;
  team.parallelEach(items, [&](int thread, int64_t item) {
    const AttentionBlock &block =
        blocks.blocks[blocks.blockOrder[item / heads]];
    int64_t index = item % heads;
    pass.forwardBlock(block.row + index / c.heads, index % c.heads, block,
                      p.scratch + thread * c.scratchBytesPerThread);
  });
}

/// Backward with the gradient of a bias: one item owns every gradient it adds
/// to, those of a key head and, if the bias is shared by batches or heads,
/// those of all that share it.
static void backwardWithBias(const AttentionCommand &c,
                             const AttentionPointers &p,
                             const AttentionBlocks &blocks, const Pass &pass,
                             const ThreadTeam &team) {
  int64_t sizes[4] = {c.batch, c.heads, c.queries, c.keysOf(c.biasStrides)};
  int64_t elements = 1;
  for (int d = 0; d < 4; ++d)
    elements *= c.biasStrides[d] ? sizes[d] : 1;
  team.parallelFor(elements, 1 << 14, [&](int64_t begin, int64_t end) {
    std::fill(p.dBias + begin, p.dBias + end, 0.0f);
  });
  bool sharedByBatch = c.biasStrides[0] == 0;
  bool sharedByHead = c.biasStrides[1] == 0;
  int64_t batches = sharedByBatch ? 1 : c.batch;
  int64_t heads = sharedByHead ? 1 : c.kvHeads;
  team.parallelEach(batches * heads, [&](int thread, int64_t item) {
    int64_t b0 = sharedByBatch ? 0 : item / heads;
    int64_t b1 = sharedByBatch ? c.batch : b0 + 1;
    int64_t h0 = sharedByHead ? 0 : item % heads;
    int64_t h1 = sharedByHead ? c.kvHeads : h0 + 1;
    for (int64_t b = b0; b < b1; ++b)
      for (int64_t h = h0; h < h1; ++h)
        for (const AttentionPart &part : blocks.parts)
          if (blocks.rows == 1 || part.row == b)
            pass.backwardPart(b, h, part,
                              p.scratch + thread * c.scratchBytesPerThread);
  });
}

void cleave::runtime::attentionBackward(const AttentionCommand &c,
                                        const AttentionPointers &p,
                                        const ThreadTeam &team) {
  const AttentionBlocks &blocks = blocksOf(c, p);
  Pass pass(c, p, blocks);
  if (p.dBias)
    return backwardWithBias(c, p, blocks, pass, team);
  // One item owns the gradients of the keys of a part, of one key head.
  int64_t heads = c.batch / blocks.rows * c.kvHeads;
  auto items = static_cast<int64_t>(blocks.parts.size()) * heads;
  team.parallelEach(items, [&](int thread, int64_t item) {
    const AttentionPart &part = blocks.parts[blocks.partOrder[item / heads]];
    int64_t index = item % heads;
    pass.backwardPart(part.row + index / c.kvHeads, index % c.kvHeads, part,
                      p.scratch + thread * c.scratchBytesPerThread);
  });
}
