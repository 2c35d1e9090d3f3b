//===- Attention.cpp - Attention and its gradients ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Models.h"
#include <cmath>
#include <limits>

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

namespace {

/// The scores of attention, one row of keys at a time; for the op and for its
/// gradients, which share their operands.
template <typename OpTy> class Scores {
public:
  Scores(OpTy op, const RefArgs &args)
      : query(args[op.getQuery()]), key(args[op.getKey()]),
        value(args[op.getValue()]), bias(args.lookup(op.getBias())),
        mask(args.lookup(op.getMask())),
        segments(args.lookup(op.getSegments())), keySegments(segments),
        rng(args.lookup(op.getRng())),
        queryStarts(args.lookup(op.getQueryStarts())),
        keyStarts(args.lookup(op.getKeyStarts())) {
    if (op.getKeySegments())
      keySegments = args.lookup(op.getKeySegments());
    batches = query.shape[0];
    heads = query.shape[1];
    queries = query.shape[2];
    keys = key.shape[2];
    channels = query.shape[3];
    valueChannels = value.shape[3];
    keyHeads = key.shape[1];
    scale = op.getScale().convertToDouble();
    dropout = op.getDropout().convertToDouble();
    dropoutId = op.getDropoutId();
    causal = op.getCausal();
    if (op.getWindow())
      window = static_cast<int64_t>(*op.getWindow());
    int64_t blocks = op.getBlocks();
    blockQueries = std::max<int64_t>(queries / blocks, 1);
    blockKeys = keys / blocks;
    SmallVector<int64_t, 4> shape{batches, heads, queries, keys};
    if (bias)
      biasStrides = stridesOf(*bias);
    if (mask)
      maskStrides = stridesOf(*mask);
    // Positions and random numbers are those of the global scores.
    globalShape = shape;
    if (auto global = op.getGlobalShape())
      globalShape = SmallVector<int64_t, 4>(*global);
    if (Value value = op.getOrigin())
      llvm::copy(args[value].ints, origin.begin());
  }

  /// The keys of the same block as query `i`.
  int64_t firstKey(int64_t i) const { return i / blockQueries * blockKeys; }
  int64_t endKey(int64_t i) const { return firstKey(i) + blockKeys; }

  /// The positions of query `i` and of key `j` in the global scores.
  int64_t queryPlace(int64_t i) const {
    return place(queryStarts, queries, origin[2], i);
  }
  int64_t keyPlace(int64_t j) const {
    return place(keyStarts, keys, origin[3], j);
  }

  /// The offsets of rows of the tensors.
  int64_t queryRow(int64_t b, int64_t h, int64_t i) const {
    return ((b * heads + h) * queries + i) * channels;
  }
  int64_t keyRow(int64_t b, int64_t h, int64_t j) const {
    return ((b * keyHeads + h / (heads / keyHeads)) * keys + j) * channels;
  }
  int64_t valueRow(int64_t b, int64_t h, int64_t j) const {
    return ((b * keyHeads + h / (heads / keyHeads)) * keys + j) * valueChannels;
  }
  int64_t outputRow(int64_t b, int64_t h, int64_t i) const {
    return ((b * heads + h) * queries + i) * valueChannels;
  }
  int64_t biasIndex(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return extraIndex(biasStrides, b, h, i, j);
  }

  bool visible(int64_t b, int64_t h, int64_t i, int64_t j) const {
    int64_t key = keyPlace(j);
    int64_t diagonal = queryPlace(i) + globalShape[3] - globalShape[2];
    if (causal && key > diagonal)
      return false;
    if (window && key <= diagonal - *window)
      return false;
    if (segments &&
        segments->ints[b * queries + i] != keySegments->ints[b * keys + j])
      return false;
    return !mask || mask->ints[extraIndex(maskStrides, b, h, i, j)];
  }

  double score(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const double *q = query.floats.data() + queryRow(b, h, i);
    const double *k = key.floats.data() + keyRow(b, h, j);
    double sum = 0;
    for (int64_t c = 0; c < channels; ++c)
      sum += q[c] * k[c];
    return scale * sum + (bias ? bias->floats[biasIndex(b, h, i, j)] : 0.0);
  }

  /// The factor dropout applies to one probability.
  double keep(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (dropout == 0)
      return 1.0;
    int64_t row =
        ((origin[0] + b) * globalShape[1] + origin[1] + h) * globalShape[2] +
        queryPlace(i);
    int64_t padded = (globalShape[3] + 63) / 64 * 64;
    return dropoutFactor(*rng, dropoutId, dropout, row * padded + keyPlace(j));
  }

  const RefTensor &query, &key, &value;
  const RefTensor *bias, *mask, *segments, *keySegments, *rng, *queryStarts,
      *keyStarts;
  int64_t batches, heads, queries, keys, channels, valueChannels, keyHeads;
  double scale, dropout;

private:
  /// The strides of a mask or bias. One with a value for each pair has the keys
  /// of the query's block.
  SmallVector<int64_t, 4> stridesOf(const RefTensor &extra) const {
    size_t rank = extra.shape.size();
    bool pairs = rank > 1 && extra.shape[rank - 2] != 1;
    SmallVector<int64_t, 4> shape{batches, heads, queries,
                                  pairs ? blockKeys : keys};
    return broadcastStrides(extra, shape);
  }
  int64_t extraIndex(ArrayRef<int64_t> strides, int64_t b, int64_t h, int64_t i,
                     int64_t j) const {
    int64_t key = strides[2] != 0 ? j - firstKey(i) : j;
    return b * strides[0] + h * strides[1] + i * strides[2] + key * strides[3];
  }
  static int64_t place(const RefTensor *starts, int64_t size, int64_t first,
                       int64_t i) {
    if (!starts)
      return first + i;
    int64_t piece = size / starts->shape[0];
    return starts->ints[i / piece] + first + i % piece;
  }

  int64_t blockQueries, blockKeys;
  bool causal;
  std::optional<int64_t> window;
  int64_t dropoutId;
  SmallVector<int64_t, 4> biasStrides, maskStrides, globalShape;
  std::array<int64_t, 4> origin{};
};

} // namespace

namespace {
/// A log-sum-exp as a sum of two numbers, which is stored as two with a bias.
struct LogSum {
  double largest, rest;

  static LogSum read(const RefTensor &lse, int64_t row, bool two) {
    if (!two)
      return {lse.floats[row], 0};
    return {lse.floats[2 * row], lse.floats[2 * row + 1]};
  }
  void write(RefTensor &lse, int64_t row, bool two) const {
    if (!two) {
      lse.floats[row] = largest + rest;
      return;
    }
    // What rounding of the first leaves out is part of the second: scores are
    // not rounded here.
    double first = static_cast<float>(largest);
    bool finite = std::isfinite(first) && std::isfinite(rest);
    lse.floats[2 * row] = finite ? first : largest;
    lse.floats[2 * row + 1] = finite ? rest + (largest - first) : rest;
  }
  /// Adds the exponentials of `before`, whose share of the sum is returned;
  /// `share` becomes that of the own ones.
  double join(LogSum before, double &share) {
    double top = std::max(before.largest, largest);
    if (top == -std::numeric_limits<double>::infinity())
      return 1;
    double old = std::exp(before.largest - top + before.rest),
           own = std::exp(largest - top + rest);
    *this = {top, std::log(old + own)};
    share = own / (old + own);
    return old / (old + own);
  }
};
} // namespace

static LogicalResult evaluateAttention(AttentionOp op, const RefArgs &args,
                                       Results results, ReferenceContext &) {
  Scores<AttentionOp> scores(op, args);
  RefTensor &output = results[0], &lse = results[1];
  const double infinity = std::numeric_limits<double>::infinity();
  const RefTensor *onto = args.lookup(op.getOnto());
  const RefTensor *ontoLse = args.lookup(op.getOntoLse());
  std::vector<double> row(scores.keys);
  for (int64_t b = 0; b < scores.batches; ++b)
    for (int64_t h = 0; h < scores.heads; ++h)
      for (int64_t i = 0; i < scores.queries; ++i) {
        int64_t first = scores.firstKey(i), end = scores.endKey(i);
        double largest = -infinity;
        for (int64_t j = first; j < end; ++j)
          if (scores.visible(b, h, i, j)) {
            row[j] = scores.score(b, h, i, j);
            largest = std::isnan(row[j]) ? row[j] : std::max(largest, row[j]);
          }
        double sum = 0;
        for (int64_t j = first; j < end; ++j) {
          bool visible = scores.visible(b, h, i, j);
          row[j] = visible ? std::exp(row[j] - largest) : 0.0;
          sum += row[j];
        }
        int64_t at = (b * scores.heads + h) * scores.queries + i;
        int64_t outputAt = scores.outputRow(b, h, i);
        double *out = output.floats.data() + outputAt;
        // If no key is visible the output is 0, or the value of `onto`.
        LogSum own{sum == 0 ? -infinity : largest,
                   sum == 0 ? 0 : std::log(sum)};
        double share = 1;
        if (onto) {
          LogSum before = LogSum::read(*ontoLse, at, scores.bias);
          double kept = own.join(before, share);
          for (int64_t c = 0; c < scores.valueChannels; ++c)
            out[c] = kept * onto->floats[outputAt + c];
        }
        own.write(lse, at, scores.bias);
        if (sum == 0)
          continue;
        for (int64_t j = first; j < end; ++j) {
          if (row[j] == 0)
            continue;
          double p = share * row[j] / sum * scores.keep(b, h, i, j);
          const double *v =
              scores.value.floats.data() + scores.valueRow(b, h, j);
          for (int64_t c = 0; c < scores.valueChannels; ++c)
            out[c] += p * v[c];
        }
      }
  return success();
}

/// Calls `fn(b, h, i, j, p, ds)` for each visible pair: the probability after
/// dropout, and the gradient of the score.
template <typename OpTy, typename Fn>
static void forEachScoreGradient(const Scores<OpTy> &scores, OpTy op,
                                 const RefArgs &args, Fn fn) {
  const RefTensor &gradient = args[op.getGradient()];
  const RefTensor &output = args[op.getOutput()];
  const RefTensor &lse = args[op.getLse()];
  for (int64_t b = 0; b < scores.batches; ++b)
    for (int64_t h = 0; h < scores.heads; ++h)
      for (int64_t i = 0; i < scores.queries; ++i) {
        const double *g = gradient.floats.data() + scores.outputRow(b, h, i);
        const double *o = output.floats.data() + scores.outputRow(b, h, i);
        // The mean of the gradients of the row's probabilities.
        double mean = 0;
        for (int64_t c = 0; c < scores.valueChannels; ++c)
          mean += g[c] * o[c];
        LogSum sum = LogSum::read(
            lse, (b * scores.heads + h) * scores.queries + i, scores.bias);
        for (int64_t j = scores.firstKey(i); j < scores.endKey(i); ++j) {
          if (!scores.visible(b, h, i, j))
            continue;
          double p =
              std::exp(scores.score(b, h, i, j) - sum.largest - sum.rest);
          double keep = scores.keep(b, h, i, j);
          const double *v =
              scores.value.floats.data() + scores.valueRow(b, h, j);
          double dp = 0;
          for (int64_t c = 0; c < scores.valueChannels; ++c)
            dp += g[c] * v[c];
          fn(b, h, i, j, p * keep, p * (dp * keep - mean));
        }
      }
}

static LogicalResult evaluateAttentionGrad(AttentionGradOp op,
                                           const RefArgs &args, Results results,
                                           ReferenceContext &) {
  Scores<AttentionGradOp> scores(op, args);
  const RefTensor &gradient = args[op.getGradient()];
  double *dq = results[0].floats.data(), *dk = results[1].floats.data(),
         *dv = results[2].floats.data();
  const double *q = scores.query.floats.data(), *k = scores.key.floats.data();
  forEachScoreGradient(
      scores, op, args,
      [&](int64_t b, int64_t h, int64_t i, int64_t j, double p, double ds) {
        int64_t query = scores.queryRow(b, h, i), key = scores.keyRow(b, h, j);
        for (int64_t c = 0; c < scores.channels; ++c) {
          dq[query + c] += scores.scale * ds * k[key + c];
          dk[key + c] += scores.scale * ds * q[query + c];
        }
        const double *g = gradient.floats.data() + scores.outputRow(b, h, i);
        double *v = dv + scores.valueRow(b, h, j);
        for (int64_t c = 0; c < scores.valueChannels; ++c)
          v[c] += p * g[c];
      });
  return success();
}

static LogicalResult evaluateAttentionBiasGrad(AttentionBiasGradOp op,
                                               const RefArgs &args,
                                               Results results,
                                               ReferenceContext &) {
  Scores<AttentionBiasGradOp> scores(op, args);
  forEachScoreGradient(
      scores, op, args,
      [&](int64_t b, int64_t h, int64_t i, int64_t j, double, double ds) {
        results[0].floats[scores.biasIndex(b, h, i, j)] += ds;
      });
  return success();
}

void cleave::attachAttentionModels(MLIRContext *c) {
  ReferenceModel<AttentionOp, evaluateAttention>::attach(c);
  ReferenceModel<AttentionGradOp, evaluateAttentionGrad>::attach(c);
  ReferenceModel<AttentionBiasGradOp, evaluateAttentionBiasGrad>::attach(c);
}
