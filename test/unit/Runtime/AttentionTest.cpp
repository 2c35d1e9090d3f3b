//===- AttentionTest.cpp - Tests of attention -----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/CPU/Attention.h"
#include "Runtime/CPU/Attention/AttentionBlocks.h"
#include "Runtime/CPU/Attention/AttentionRows.h"
#include "Runtime/CPU/LibraryMemory.h"
#include "cleave/Support/Philox.h"
#include "gtest/gtest.h"

#include <cmath>
#include <ctime>
#include <random>

using namespace cleave::runtime;

namespace {

using Floats = std::vector<float>;

/// An attention problem with storage, and its result in f64, element by
/// element as the definition says.
struct Problem {
  AttentionCommand c;
  AttentionPointers p;
  Floats q, k, v, o, lse, bias, dO, dQ, dK, dV, dBias;
  std::vector<uint8_t> mask;
  std::vector<int64_t> querySegments, keySegments, rng;
  std::vector<char> scratch;
  std::vector<double> refO, refLse, refDQ, refDK, refDV, refDBias;
  /// Largest sum of magnitudes behind an element of `refDBias`.
  double dBiasMass = 0;
  std::vector<int64_t> origin, queryStarts, keyStarts;

  /// The place of position `i` of `size` in the global scores, of which those
  /// of dimension `dim` begin at the origin.
  int64_t place(const std::vector<int64_t> &starts, int dim, int64_t size,
                int64_t i) const {
    int64_t first = origin.empty() ? 0 : origin[dim];
    if (starts.empty())
      return first + i;
    int64_t piece = size / int64_t(starts.size());
    return starts[i / piece] + first + i % piece;
  }
  int64_t queryPlace(int64_t i) const {
    return place(queryStarts, 2, c.queries, i);
  }
  int64_t keyPlace(int64_t j) const { return place(keyStarts, 3, c.keys, j); }

  /// Pieces of `size` positions that begin anywhere behind each other within a
  /// block; blocks come in any order.
  static std::vector<int64_t> pieces(std::mt19937 &gen, int64_t size,
                                     int64_t blocks) {
    int64_t own = 1 + int64_t(gen() % 4), count = blocks * own;
    std::vector<int64_t> starts, order;
    if (size % count != 0)
      return starts;
    for (int64_t block = 0; block < blocks; ++block)
      order.push_back(block);
    std::shuffle(order.begin(), order.end(), gen);
    starts.resize(count);
    int64_t next = 0;
    for (int64_t block : order)
      for (int64_t i = 0; i < own; ++i) {
        int64_t &start = starts[block * own + i];
        start = next + int64_t(gen() % 3 ? 0 : gen() % 100);
        next = start + size / count;
      }
    return starts;
  }

  /// Positions are outermost in some views, heads in others.
  static void view(HeadView &view, std::mt19937 &gen, int64_t heads,
                   int64_t positions, int64_t channels) {
    if (gen() % 2) {
      view.stridePosition = heads * channels;
      view.strideHead = channels;
    } else {
      view.stridePosition = channels;
      view.strideHead = positions * channels;
    }
    view.strideBatch = heads * positions * channels;
  }

  static void randomise(Floats &values, std::mt19937 &gen, int64_t n,
                        float spread = 1.0f) {
    std::normal_distribution<float> normal(0.0f, spread);
    values.resize(static_cast<size_t>(n));
    for (float &value : values)
      value = normal(gen);
  }

  void prepare(std::mt19937 &gen, int threads) {
    view(c.q, gen, c.heads, c.queries, c.headSize);
    view(c.k, gen, c.kvHeads, c.keys, c.headSize);
    view(c.v, gen, c.kvHeads, c.keys, c.valueSize);
    view(c.o, gen, c.heads, c.queries, c.valueSize);
    view(c.dO, gen, c.heads, c.queries, c.valueSize);
    view(c.dQ, gen, c.heads, c.queries, c.headSize);
    view(c.dK, gen, c.kvHeads, c.keys, c.headSize);
    view(c.dV, gen, c.kvHeads, c.keys, c.valueSize);
    int64_t rows = c.batch * c.heads * c.queries;
    int64_t kvRows = c.batch * c.kvHeads * c.keys;
    randomise(q, gen, rows * c.headSize);
    randomise(k, gen, kvRows * c.headSize);
    randomise(v, gen, kvRows * c.valueSize);
    randomise(dO, gen, rows * c.valueSize);
    // What is overwritten must not be read.
    o.assign(rows * c.valueSize, NAN);
    lse.assign(bias.empty() ? rows : 2 * rows, NAN);
    dQ.assign(rows * c.headSize, NAN);
    dK.assign(kvRows * c.headSize, NAN);
    dV.assign(kvRows * c.valueSize, NAN);
    rng = {int64_t(gen()) << 20 | int64_t(gen()), 17};
    std::vector<int64_t> start =
        origin.empty() ? std::vector<int64_t>(4) : origin;
    c.globalHeads = c.heads + start[1];
    for (int64_t i = 0; i < c.queries; ++i)
      c.globalQueries = std::max(c.globalQueries, queryPlace(i) + 1);
    for (int64_t j = 0; j < c.keys; ++j)
      c.globalKeys = std::max(c.globalKeys, keyPlace(j) + 1);
    c.queryPieces = int64_t(queryStarts.size());
    c.keyPieces = int64_t(keyStarts.size());
    c.scratchBytesPerThread = std::max(attentionScratchBytes(c, false),
                                       attentionScratchBytes(c, true));
    scratch.assign(c.scratchBytesPerThread * threads, char(0xff));
    p = {q.data(), k.data(), v.data(), o.data(), lse.data()};
    if (!bias.empty())
      p.bias = bias.data();
    if (!mask.empty())
      p.mask = mask.data();
    if (!querySegments.empty()) {
      p.querySegments = querySegments.data();
      p.keySegments = keySegments.data();
    }
    p.rng = rng.data();
    if (!origin.empty())
      p.origin = origin.data();
    if (!queryStarts.empty())
      p.queryStarts = queryStarts.data();
    if (!keyStarts.empty())
      p.keyStarts = keyStarts.data();
    p.dO = dO.data();
    p.dQ = dQ.data();
    p.dK = dK.data();
    p.dV = dV.data();
    if (!bias.empty()) {
      dBias.assign(bias.size(), NAN);
      p.dBias = dBias.data();
    }
    p.scratch = scratch.data();
  }

  void reference() {
    refO.assign(o.size(), 0);
    refLse.assign(c.batch * c.heads * c.queries, 0);
    refDQ.assign(dQ.size(), 0);
    refDK.assign(dK.size(), 0);
    refDV.assign(dV.size(), 0);
    refDBias.assign(bias.size(), 0);
    std::vector<double> mass(bias.size());
    auto at = [](const HeadView &w, int64_t b, int64_t h, int64_t i) {
      return b * w.strideBatch + h * w.strideHead + i * w.stridePosition;
    };
    int64_t paddedKeys = (c.globalKeys + 63) / 64 * 64;
    philox::Stream stream{uint64_t(rng[0]), uint32_t(c.dropoutId),
                          uint32_t(rng[1])};
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t h = 0; h < c.heads; ++h)
        for (int64_t i = 0; i < c.queries; ++i) {
          int64_t g = h / (c.heads / c.kvHeads);
          std::vector<double> s(c.keys), keep(c.keys, 1.0), dp(c.keys);
          double max = -INFINITY, total = 0;
          int64_t block = i / (c.queries / c.blocks);
          // With queries, a mask or bias has the keys of their block.
          auto extraAt = [&](const int64_t (&strides)[4], int64_t j) {
            int64_t key = strides[2] ? j - block * (c.keys / c.blocks) : j;
            return b * strides[0] + h * strides[1] + i * strides[2] +
                   key * strides[3];
          };
          for (int64_t j = 0; j < c.keys; ++j) {
            double x = 0;
            for (int64_t d = 0; d < c.headSize; ++d)
              x += double(q[at(c.q, b, h, i) + d]) * k[at(c.k, b, g, j) + d];
            x *= c.scale;
            int64_t diagonal = queryPlace(i) + c.globalKeys - c.globalQueries;
            bool hidden = block != j / (c.keys / c.blocks) ||
                          (c.causal && keyPlace(j) > diagonal) ||
                          (c.window > 0 && keyPlace(j) <= diagonal - c.window);
            if (p.mask && !hidden)
              hidden = !mask[extraAt(c.maskStrides, j)];
            if (p.bias && !hidden)
              x += bias[extraAt(c.biasStrides, j)];
            if (p.querySegments)
              hidden |= querySegments[b * c.queries + i] !=
                        keySegments[b * c.keys + j];
            s[j] = hidden ? -INFINITY : x;
            max = std::max(max, s[j]);
            if (c.dropout > 0) {
              std::vector<int64_t> at =
                  origin.empty() ? std::vector<int64_t>(4) : origin;
              uint64_t e = at[0] + b;
              e = (e * c.globalHeads + at[1] + h) * c.globalQueries +
                  queryPlace(i);
              e = e * paddedKeys + keyPlace(j);
              keep[j] = philox::draw(stream, e) >= philox::threshold(c.dropout)
                            ? philox::keepScale(c.dropout)
                            : 0.0f;
            }
          }
          int64_t row = (b * c.heads + h) * c.queries + i;
          if (max == -INFINITY) {
            refLse[row] = -INFINITY;
            continue;
          }
          for (double &x : s)
            total += std::exp(x - max);
          refLse[row] = max + std::log(total);
          double dot = 0;
          for (int64_t j = 0; j < c.keys; ++j) {
            s[j] = std::exp(s[j] - refLse[row]);
            for (int64_t d = 0; d < c.valueSize; ++d) {
              double vd = v[at(c.v, b, g, j) + d];
              double od = dO[at(c.dO, b, h, i) + d];
              refO[at(c.o, b, h, i) + d] += s[j] * keep[j] * vd;
              dp[j] += od * vd * keep[j];
              refDV[at(c.dV, b, g, j) + d] += s[j] * keep[j] * od;
            }
            dot += s[j] * dp[j];
          }
          int64_t sizes[4] = {c.batch, c.heads, c.queries,
                              c.keysOf(c.biasStrides)};
          for (int64_t j = 0; j < c.keys; ++j) {
            double ds = s[j] * (dp[j] - dot);
            for (int64_t d = 0; d < c.headSize; ++d) {
              refDQ[at(c.dQ, b, h, i) + d] +=
                  ds * c.scale * k[at(c.k, b, g, j) + d];
              refDK[at(c.dK, b, g, j) + d] +=
                  ds * c.scale * q[at(c.q, b, h, i) + d];
            }
            if (p.dBias && block == j / (c.keys / c.blocks)) {
              int64_t key =
                  c.biasStrides[2] ? j - block * (c.keys / c.blocks) : j;
              int64_t index[4] = {b, h, i, key}, offset = 0;
              for (int d = 0; d < 4; ++d)
                if (c.biasStrides[d])
                  offset = offset * sizes[d] + index[d];
              refDBias[offset] += ds;
              mass[offset] += s[j] * (std::fabs(dp[j]) + std::fabs(dot));
              dBiasMass = std::max(dBiasMass, mass[offset]);
            }
          }
        }
  }
};

/// The log-sum-exp of each row; with a bias it is stored as two numbers.
Floats sums(const Problem &t) {
  if (t.bias.empty())
    return t.lse;
  Floats result;
  for (size_t i = 0; i < t.lse.size(); i += 2)
    result.push_back(t.lse[i] + t.lse[i + 1]);
  return result;
}

void compare(const Floats &got, const std::vector<double> &expected,
             const char *what, double norm = 0) {
  double error = 0;
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(expected[i])) {
      ASSERT_EQ(double(got[i]), expected[i]) << what << " " << i;
      continue;
    }
    ASSERT_TRUE(std::isfinite(got[i])) << what << " " << i;
    norm = std::max(norm, std::fabs(expected[i]));
    error = std::max(error, std::fabs(got[i] - expected[i]));
  }
  EXPECT_LE(error, 2e-5 * norm + 1e-6) << what;
}

/// Documents of such lengths, in pieces that come one after another: numbers
/// ascend or are any.
std::vector<int64_t> drawDocuments(std::mt19937 &gen, int64_t size,
                                   int64_t longest, bool again) {
  std::vector<int64_t> segments, numbers;
  while (int64_t(segments.size()) < size) {
    if (!numbers.empty() && again && gen() % 3 == 0)
      numbers.push_back(numbers[gen() % numbers.size()]);
    else
      numbers.push_back(longest % 2 ? int64_t(gen()) - (1 << 30)
                                    : int64_t(numbers.size()));
    int64_t length = std::min(1 + int64_t(gen() % uint64_t(longest)),
                              size - int64_t(segments.size()));
    segments.insert(segments.end(), size_t(length), numbers.back());
  }
  return segments;
}

TEST(Attention, RandomAgainstDefinition) {
  ThreadTeam team(2);
  for (unsigned seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 gen(seed);
    auto pick = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(gen);
    };
    Problem t;
    AttentionCommand &c = t.c;
    c.batch = pick(1, 3);
    c.kvHeads = pick(1, 3);
    c.heads = c.kvHeads * pick(1, 3);
    c.queries = pick(1, seed % 10 ? 90 : 200);
    c.keys = pick(0, 1) ? c.queries : pick(1, seed % 10 ? 150 : 700);
    c.headSize = pick(1, 40);
    c.valueSize = pick(0, 1) ? c.headSize : pick(1, 40);
    c.scale = 1.0f / std::sqrt(float(c.headSize));
    c.causal = pick(0, 1);
    c.window = pick(0, 2) ? 0 : pick(1, 100);
    c.queryBlock = pick(1, 70);
    c.dropout = pick(0, 1) ? 0.0f : 0.3f;
    c.dropoutId = pick(0, 100);
    // Of other keys, whole groups of draws or any number may come before.
    if (pick(0, 1))
      t.origin = {pick(0, 5), pick(0, 3), pick(0, 20),
                  pick(0, 1) ? 64 * pick(0, 2) : pick(0, 100)};
    if (int64_t blocks = pick(2, 5); pick(0, 2) == 0) {
      c.queries = blocks * (1 + c.queries / blocks);
      c.keys = blocks * (1 + c.keys / blocks);
      c.blocks = blocks;
    }
    if (pick(0, 2) == 0)
      t.queryStarts = Problem::pieces(gen, c.queries, c.blocks);
    if (pick(0, 2) == 0)
      t.keyStarts = Problem::pieces(gen, c.keys, c.blocks);
    auto broadcast = [&](int64_t (&strides)[4]) {
      int64_t sizes[4] = {c.batch, c.heads, c.queries, c.keys}, step = 1;
      bool queries = pick(0, 1);
      if (queries)
        sizes[3] /= c.blocks;
      for (int d = 3; d >= 0; --d) {
        strides[d] = (d == 2 ? queries : bool(pick(0, 1))) ? step : 0;
        if (strides[d])
          step *= sizes[d];
      }
      return step;
    };
    if (pick(0, 1))
      Problem::randomise(t.bias, gen, broadcast(c.biasStrides), 0.5f);
    if (pick(0, 2) == 0) {
      t.mask.resize(broadcast(c.maskStrides));
      for (uint8_t &m : t.mask)
        m = pick(0, 3) != 0;
    }
    if (pick(0, 2) == 0) {
      // In any order, or packed documents one after another.
      int64_t document = pick(0, 1) ? 1 : pick(5, 100);
      for (int64_t i = 0; i < c.batch * c.queries; ++i)
        t.querySegments.push_back(document == 1 ? pick(0, 2)
                                                : i % c.queries / document);
      for (int64_t i = 0; i < c.batch * c.keys; ++i)
        t.keySegments.push_back(document == 1 ? pick(0, 1)
                                              : i % c.keys / document);
      // Documents of any number that come again after others.
      if (document % 2 == 0 && c.queries == c.keys) {
        t.querySegments.clear();
        for (int64_t b = 0; b < c.batch; ++b)
          for (int64_t s : drawDocuments(gen, c.keys, document, true))
            t.querySegments.push_back(s);
        t.keySegments = t.querySegments;
      }
    }
    t.prepare(gen, team.size());
    t.reference();
    attentionForward(c, t.p, team);
    attentionBackward(c, t.p, team);
    compare(t.o, t.refO, "o");
    compare(sums(t), t.refLse, "lse");
    compare(t.dQ, t.refDQ, "dQ");
    compare(t.dK, t.refDK, "dK");
    compare(t.dV, t.refDV, "dV");
    if (!t.bias.empty())
      compare(t.dBias, t.refDBias, "dBias", t.dBiasMass);

    // The same bits on one thread.
    Floats o = t.o, dQ = t.dQ, dK = t.dK, dV = t.dV, dBias = t.dBias;
    ThreadTeam single(1);
    {
      ThreadTeam::Adopted adopted = single.adopt();
      attentionForward(c, t.p, single);
      attentionBackward(c, t.p, single);
    }
    EXPECT_EQ(o, t.o);
    EXPECT_EQ(dQ, t.dQ);
    EXPECT_EQ(dK, t.dK);
    EXPECT_EQ(dV, t.dV);
    EXPECT_EQ(dBias, t.dBias);
    if (testing::Test::HasFailure())
      break;
  }
}

/// An output that was rounded to 8 bits: the gradients are those of the whole
/// one, also where rows have one large probability and gradients are small
/// differences. Keys of other documents are in a row, and dropped ones.
TEST(Attention, RoundedOutput) {
  ThreadTeam team(2);
  for (unsigned seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 gen(seed);
    Problem t;
    AttentionCommand &c = t.c;
    c.batch = c.kvHeads = 2;
    c.heads = 4;
    c.queries = 50;
    c.keys = 90;
    c.headSize = c.valueSize = 16;
    c.scale = seed % 4 < 2 ? 4.0f : 0.25f;
    c.causal = seed / 2 % 2;
    c.dropout = seed % 2 ? 0.3f : 0.0f;
    if (seed >= 4) {
      c.biasStrides[3] = 1;
      Problem::randomise(t.bias, gen, c.keys);
      for (int64_t i = 0; i < c.batch * c.queries; ++i)
        t.querySegments.push_back(gen() % 2);
      for (int64_t i = 0; i < c.batch * c.keys; ++i)
        t.keySegments.push_back(gen() % 2);
    }
    t.prepare(gen, team.size());
    t.reference();
    attentionForward(c, t.p, team);
    for (float &value : t.o) {
      int exponent;
      value =
          std::ldexp(std::round(std::ldexp(std::frexp(value, &exponent), 8)),
                     exponent - 8);
    }
    attentionBackward(c, t.p, team);
    compare(t.dQ, t.refDQ, "dQ", 2.0);
    compare(t.dK, t.refDK, "dK", 2.0);
    compare(t.dV, t.refDV, "dV");
  }
}

/// Half of the keys after the other, in either order: as all at once, gradients
/// too. Some queries see no key of one half, and the first ones of a window
/// none at all; a huge bias hides no key of a row whose keys all have it.
TEST(Attention, OntoOtherKeys) {
  ThreadTeam team(2);
  for (unsigned seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 gen(seed);
    Problem t;
    AttentionCommand &c = t.c;
    c.batch = 2;
    c.heads = 4;
    c.kvHeads = 2;
    c.queries = c.keys = 2 * (30 + int64_t(gen() % 60));
    c.headSize = c.valueSize = 16;
    c.scale = 0.25f;
    c.causal = seed % 2;
    c.window = seed % 3 == 0 ? 20 : 0;
    c.dropout = seed % 4 < 2 ? 0.0f : 0.3f;
    c.queryBlock = 32;
    if (seed % 3 != 1) {
      c.biasStrides[2] = c.keys;
      c.biasStrides[3] = 1;
      Problem::randomise(t.bias, gen, c.queries * c.keys);
      for (int64_t i = 0; i < c.queries; i += 3)
        std::fill_n(t.bias.begin() + i * c.keys + i % 2 * c.keys / 4,
                    c.keys - i % 2 * c.keys / 2, -1e30f);
    }
    t.prepare(gen, team.size());
    attentionForward(c, t.p, team);
    attentionBackward(c, t.p, team);
    Floats o = t.o, lse = sums(t), dQ = t.dQ, dK = t.dK;

    AttentionCommand half = c;
    half.keys /= 2;
    half.keyPieces = 1;
    std::fill(t.o.begin(), t.o.end(), NAN);
    std::fill(t.lse.begin(), t.lse.end(), NAN);
    for (int step = 0; step < 2; ++step) {
      int64_t part = seed % 5 < 2 ? step : 1 - step, start = part * half.keys;
      AttentionPointers p = t.p;
      p.k += start * c.k.stridePosition;
      p.v += start * c.v.stridePosition;
      if (p.bias)
        p.bias += start;
      p.keyStarts = &start;
      half.onto = step == 1;
      attentionForward(half, p, team);
    }
    auto exact = [](const Floats &values) {
      return std::vector<double>(values.begin(), values.end());
    };
    compare(t.o, exact(o), "o");
    compare(sums(t), exact(lse), "lse");
    Floats sum(dQ.size());
    for (int64_t start : {int64_t(0), half.keys}) {
      AttentionPointers p = t.p;
      p.k += start * c.k.stridePosition;
      p.v += start * c.v.stridePosition;
      p.dK += start * c.dK.stridePosition;
      p.dV += start * c.dV.stridePosition;
      p.dBias = nullptr;
      if (p.bias)
        p.bias += start;
      p.keyStarts = &start;
      attentionBackward(half, p, team);
      for (size_t i = 0; i < sum.size(); ++i)
        sum[i] += t.dQ[i];
    }
    compare(sum, exact(dQ), "dQ");
    compare(t.dK, exact(dK), "dK");
  }
}

/// Blocks have each query once, and each key that a query of theirs sees; parts
/// have each key once, and all that their blocks see.
TEST(Attention, BlocksOfDocuments) {
  AttentionBlocks blocks;
  for (unsigned seed = 0; seed < 80; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 gen(seed);
    Problem t;
    AttentionCommand &c = t.c;
    c.batch = 2;
    c.heads = c.kvHeads = c.headSize = c.valueSize = 1;
    c.queries = c.keys = 1 + int64_t(gen() % 700);
    c.causal = gen() % 4 != 0;
    c.window = gen() % 3 ? 0 : 1 + int64_t(gen() % 200);
    c.dropout = gen() % 4 ? 0.0f : 0.5f;
    if (gen() % 3 == 0) {
      t.queryStarts = Problem::pieces(gen, c.queries, 1);
      t.keyStarts = Problem::pieces(gen, c.keys, 1);
    }
    bool documents = gen() % 4 != 0;
    for (int64_t b = 0; documents && b < c.batch; ++b) {
      auto drawn =
          drawDocuments(gen, c.keys, 1 + int64_t(gen() % 300), gen() % 2);
      auto add = [&](std::vector<int64_t> &to) {
        to.insert(to.end(), drawn.begin(), drawn.end());
      };
      add(t.keySegments);
      if (gen() % 4 == 0)
        std::rotate(drawn.begin(), drawn.begin() + c.keys / 2, drawn.end());
      add(t.querySegments);
    }
    t.prepare(gen, 1);
    blocks.build(c, t.p);
    AttentionPositions positions(c, t.p);
    ASSERT_EQ(blocks.rows, documents ? c.batch : 1);
    for (int64_t row = 0; row < blocks.rows; ++row) {
      int64_t next = 0;
      size_t index = 0;
      for (const AttentionPart &part : blocks.parts) {
        if (part.row != row)
          continue;
        ASSERT_EQ(part.keys.begin, next);
        next = part.keys.end;
      }
      ASSERT_EQ(next, c.keys);
      next = 0;
      for (const AttentionPart &part : blocks.parts)
        for (size_t i = 0; part.row == row && i < part.blocks; ++i) {
          const AttentionBlock &block = blocks.blocks[part.firstBlock + i];
          ASSERT_TRUE(index == 0 || part.firstBlock + i == index);
          index = part.firstBlock + i + 1;
          ASSERT_EQ(block.row, row);
          ASSERT_EQ(block.first, next);
          ASSERT_LE(block.count, c.queryBlock);
          next += block.count;
          std::vector<bool> has(c.keys);
          for (size_t r = 0; r < block.ranges; ++r) {
            KeyRange range = blocks.ranges[block.firstRange + r];
            ASSERT_LT(range.begin, range.end);
            ASSERT_GE(range.begin, part.keys.begin);
            ASSERT_LE(range.end, part.keys.end);
            ASSERT_TRUE(c.dropout == 0.0f || range.begin % 64 == 0);
            for (int64_t j = range.begin; j < range.end; ++j) {
              ASSERT_FALSE(has[j]);
              has[j] = true;
            }
          }
          for (int64_t q = block.first; q < block.first + block.count; ++q) {
            KeyRange see = positions.visible(q);
            for (int64_t j = 0; j < c.keys; ++j) {
              bool same = !documents || t.querySegments[row * c.queries + q] ==
                                            t.keySegments[row * c.keys + j];
              if (same && j >= see.begin && j < see.end)
                ASSERT_TRUE(has[j]);
              if (block.sameSegment && has[j])
                ASSERT_TRUE(same);
            }
          }
        }
      ASSERT_EQ(next, c.queries);
    }
  }
}

/// The scores that are computed of packed documents are at most 1.15 times
/// those of the documents alone.
TEST(Attention, ScoresOfDocuments) {
  AttentionBlocks blocks;
  auto scores = [&](Problem &t) {
    std::mt19937 gen(1);
    t.c.batch = t.c.heads = t.c.kvHeads = t.c.headSize = t.c.valueSize = 1;
    t.c.causal = true;
    t.prepare(gen, 1);
    blocks.build(t.c, t.p);
    int64_t count = 0;
    for (const AttentionBlock &block : blocks.blocks)
      for (size_t r = 0; r < block.ranges; ++r)
        count += block.count * blocks.ranges[block.firstRange + r].size();
    return count;
  };
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 gen(seed);
    // In order, or in two pieces each.
    int64_t pieces = 1 + seed % 2, alone = 0;
    std::vector<int64_t> lengths;
    for (int i = 0; i < 16; ++i)
      lengths.push_back(pieces * (96 + int64_t(gen() % 400)));
    Problem packed;
    for (int64_t piece = 0; piece < pieces; ++piece)
      for (size_t i = 0; i < lengths.size(); ++i)
        packed.querySegments.insert(packed.querySegments.end(),
                                    size_t(lengths[i] / pieces),
                                    int64_t(i * 2654435761u % 1000003));
    packed.keySegments = packed.querySegments;
    packed.c.queries = packed.c.keys = int64_t(packed.keySegments.size());
    int64_t together = scores(packed);
    // Parts of documents that are whole go to threads of their own.
    if (pieces == 1)
      EXPECT_GE(blocks.parts.size(), lengths.size() / 2);
    for (int64_t length : lengths) {
      Problem one;
      one.c.queries = one.c.keys = length;
      alone += scores(one);
    }
    EXPECT_GT(together, 0);
    EXPECT_LE(double(together), 1.15 * double(alone));
  }
}

/// Documents packed in a row: as each alone, to the last bits that another
/// order of sums leaves.
TEST(Attention, DocumentsAsAlone) {
  ThreadTeam team(2);
  for (unsigned seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 gen(seed);
    Problem t;
    AttentionCommand &c = t.c;
    c.batch = 2;
    c.heads = 4;
    c.kvHeads = 2;
    c.queries = c.keys = 300 + int64_t(gen() % 200);
    c.headSize = c.valueSize = 16;
    c.scale = 0.25f;
    c.causal = seed % 3 != 0;
    c.window = seed % 4 == 0 ? 50 : 0;
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t s : drawDocuments(gen, c.keys, 150 + seed % 2, false))
        t.querySegments.push_back(s);
    t.keySegments = t.querySegments;
    t.prepare(gen, team.size());
    attentionForward(c, t.p, team);
    attentionBackward(c, t.p, team);
    Problem one = t;
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t first = 0, end; first < c.keys; first = end) {
        const int64_t *segments = t.querySegments.data() + b * c.keys;
        for (end = first + 1; end < c.keys && segments[end] == segments[first];)
          ++end;
        AttentionCommand own = c;
        own.batch = 1;
        own.queries = own.keys = own.globalQueries = own.globalKeys =
            end - first;
        AttentionPointers p = one.p;
        auto at = [&](Floats &values, const HeadView &v) {
          return values.data() + b * v.strideBatch + first * v.stridePosition;
        };
        p.q = at(one.q, c.q);
        p.k = at(one.k, c.k);
        p.v = at(one.v, c.v);
        p.o = at(one.o, c.o);
        p.dO = at(one.dO, c.dO);
        p.dQ = at(one.dQ, c.dQ);
        p.dK = at(one.dK, c.dK);
        p.dV = at(one.dV, c.dV);
        Floats lse(c.heads * own.queries);
        p.lse = lse.data();
        p.scratch = one.scratch.data();
        p.querySegments = p.keySegments = nullptr;
        attentionForward(own, p, team);
        attentionBackward(own, p, team);
      }
    auto exact = [](const Floats &values) {
      return std::vector<double>(values.begin(), values.end());
    };
    compare(t.o, exact(one.o), "o");
    compare(t.dQ, exact(one.dQ), "dQ");
    compare(t.dK, exact(one.dK), "dK");
    compare(t.dV, exact(one.dV), "dV");
  }
}

TEST(Attention, ScratchIsLinearInTheSequence) {
  AttentionCommand c;
  c.queryBlock = 64;
  c.keys = 4096;
  int64_t large = attentionScratchBytes(c, false);
  c.keys = 512;
  int64_t small = attentionScratchBytes(c, false);
  EXPECT_LE(large, 8 * small);
  c.keys = 1 << 20;
  c.window = 256;
  c.causal = true;
  EXPECT_LE(attentionScratchBytes(c, false), 64 * 450 * 4);
}

TEST(AttentionRows, ExpWithinTwoUlp) {
  for (const char *isa : {"avx512", "avx2", "baseline"}) {
    const AttentionRowFunctions *rows = getAttentionRows(isa);
    if (!rows)
      continue;
    std::vector<float> x, y;
    for (int i = 0; i < 1 << 20; ++i)
      x.push_back(-87.3f + 176.0f * float(i) / float(1 << 20));
    y = x;
    rows->exp(y.data(), int64_t(y.size()));
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      double exact = std::exp(double(x[i]));
      double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
      worst = std::max(worst, std::fabs(y[i] - exact) / ulp);
    }
    EXPECT_LE(worst, 2.0) << isa;
    RecordProperty(std::string("ulp_") + isa, std::to_string(worst));
    std::vector<float> special(16, -INFINITY);
    special[1] = NAN;
    special[2] = 0.0f;
    special[3] = 100.0f;
    special[4] = INFINITY;
    special[5] = -1000.0f;
    rows->exp(special.data(), 16);
    EXPECT_EQ(special[0], 0.0f) << isa;
    EXPECT_TRUE(std::isnan(special[1])) << isa;
    EXPECT_EQ(special[2], 1.0f) << isa;
    EXPECT_TRUE(std::isinf(special[3])) << isa;
    EXPECT_TRUE(std::isinf(special[4])) << isa;
    EXPECT_EQ(special[5], 0.0f) << isa;
  }
}

/// A speed to look at, not to test: run with --gtest_also_run_disabled_tests.
TEST(Attention, DISABLED_Speed) {
  ThreadTeam team(1);
  cacheLibraryMemory();
  for (float dropout : {0.0f, 0.1f}) {
    std::mt19937 gen(1);
    Problem t;
    AttentionCommand &c = t.c;
    c.batch = 4;
    c.heads = c.kvHeads = 12;
    c.queries = c.keys = 512;
    c.headSize = c.valueSize = 64;
    c.scale = 0.125f;
    c.causal = true;
    c.dropout = dropout;
    t.prepare(gen, team.size());
    // Time of this thread only, halved: other work on the machine counts less.
    auto clock = [] {
      timespec time;
      ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
      return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
    };
    double forward = 1e9, backward = 1e9;
    for (int i = 0; i < 8; ++i) {
      double t0 = clock();
      attentionForward(c, t.p, team);
      double t1 = clock();
      attentionBackward(c, t.p, team);
      forward = std::min(forward, (t1 - t0) / 2);
      backward = std::min(backward, (clock() - t1) / 2);
    }
    printf("12 layers on 2 threads, dropout %g: forward %.1f ms, backward %.1f "
           "ms\n",
           double(dropout), 12e3 * forward, 12e3 * backward);
  }
}

} // namespace
