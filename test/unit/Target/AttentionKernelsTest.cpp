//===- AttentionKernelsTest.cpp - Attention against the processor's -------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CommandEmulation.h"
#include "cleave/Runtime/CPU/Attention.h"
#include "cleave/Support/Philox.h"
#include "llvm/ADT/APFloat.h"

#include <cmath>
#include <map>

using namespace cleave;
using namespace cleave::runtime;
using namespace cleave::testing;

namespace {

/// Numbers of 16 bits.
unsigned short narrowNumber(float x, DType type) {
  llvm::APFloat value(x);
  bool loses;
  value.convert(type == DType::BF16 ? llvm::APFloat::BFloat()
                                    : llvm::APFloat::IEEEhalf(),
                llvm::APFloat::rmNearestTiesToEven, &loses);
  return static_cast<unsigned short>(value.bitcastToAPInt().getZExtValue());
}
float widenNumber(unsigned short x, DType type) {
  llvm::APFloat value(type == DType::BF16 ? llvm::APFloat::BFloat()
                                          : llvm::APFloat::IEEEhalf(),
                      llvm::APInt(16, x));
  bool loses;
  value.convert(llvm::APFloat::IEEEsingle(), llvm::APFloat::rmNearestTiesToEven,
                &loses);
  return value.convertToFloat();
}
float rounded(float x, DType type) {
  return type == DType::F32 ? x : widenNumber(narrowNumber(x, type), type);
}
/// Half the distance from 1 to the next number.
double roundoff(DType type) { return type == DType::BF16 ? 0x1p-8 : 0x1p-11; }

/// A number in memory.
double numberAt(const char *base, int64_t at, DType type) {
  if (type == DType::F32)
    return reinterpret_cast<const float *>(base)[at];
  return widenNumber(reinterpret_cast<const unsigned short *>(base)[at], type);
}

/// An attention command with its operands, and its results in f64, element by
/// element as the definition says.
class Attention {
public:
  /// `special` biases may be infinite. Heads have numbers of the type `heads`.
  Attention(Random &random, int64_t largestSize, bool special = false,
            DType heads = DType::F32);

  void runProcessor(Memory &memory, bool backward) const;
  void reference(Memory &memory);
  void check(Memory &got, Memory &processor, bool backward) const;

  /// The command of heads of the type `heads`, with results of the type
  /// `results`, and in `narrow` what is in `wide`.
  AttentionCommand narrowed(Memory &narrow, Memory &wide, DType results,
                            bool backward) const;
  /// Compares results of that with the definition or, if that was not computed,
  /// with the processor's in f32.
  void checkNarrowed(const AttentionCommand &own, Memory &got, Memory &before,
                     Memory &processor, bool backward) const;
  /// Rounds the output to the type of heads.
  void roundOutput(Memory &memory) const;

  AttentionCommand c;
  Memory memory;
  DType headType;

private:
  using Doubles = std::vector<double>;
  struct Result {
    std::string name;
    HeadView view;
    int64_t heads = 0, positions = 0, channels = 0;
    /// [batch, heads, positions, channels]
    Doubles expected;
    /// At least the largest sum of magnitudes behind an element, if that may be
    /// larger than the largest element.
    double mass = 0;
    /// By how many unit roundoffs of 16-bit heads an element may be off.
    Doubles roundings = {};
  };

  void chooseSizes(Random &random, int64_t largestSize);
  int64_t broadcast(Random &random, int64_t (&strides)[4]) const;
  HeadView view(Random &random, int64_t heads, int64_t positions,
                int64_t channels, bool output);
  std::vector<int64_t> pieces(Random &random, int64_t size) const;
  int64_t place(const Ref &starts, int64_t piecesOf, int dim, int64_t size,
                int64_t i);
  int64_t queryPlace(int64_t i) {
    return place(c.queryStarts, c.queryPieces, 2, c.queries, i);
  }
  int64_t keyPlace(int64_t j) {
    return place(c.keyStarts, c.keyPieces, 3, c.keys, j);
  }
  AttentionPointers pointers(Memory &memory) const;
  double score(const AttentionPointers &p, int64_t b, int64_t h, int64_t i,
               int64_t j);
  double kept(const AttentionPointers &p, const philox::Stream &stream,
              int64_t b, int64_t h, int64_t i, int64_t j);

  Result o, dQ, dK, dV, dBias;
  Doubles lse;
};

HeadView Attention::view(Random &random, int64_t heads, int64_t positions,
                         int64_t channels, bool output) {
  // Any order of heads and positions, with gaps that keep alignment or not.
  HeadView result;
  auto gap = [&] { return random.chance(3) ? random.pick(1, 8) : 0; };
  if (random.chance(2)) {
    result.strideHead = channels + gap();
    result.stridePosition = heads * result.strideHead + gap();
    result.strideBatch = positions * result.stridePosition + gap();
  } else {
    result.stridePosition = channels + gap();
    result.strideHead = positions * result.stridePosition + gap();
    result.strideBatch = heads * result.strideHead + gap();
  }
  int64_t elements = c.batch * result.strideBatch + 8;
  int64_t shift = random.chance(2) ? 0 : 4 * random.pick(0, 5);
  if (output) {
    result.ref = memory.add(4 * elements, shift);
    return result;
  }
  std::vector<float> values = random.floats(elements);
  for (float &x : values)
    x = rounded(x, headType);
  result.ref = memory.add(values, shift);
  return result;
}

std::vector<int64_t> Attention::pieces(Random &random, int64_t size) const {
  // They begin anywhere behind each other; blocks come in any order.
  int64_t own = random.pick(1, 3), count = c.blocks * own;
  std::vector<int64_t> starts, order;
  if (size % count != 0 || size == 0)
    return starts;
  for (int64_t block = 0; block < c.blocks; ++block)
    order.push_back(block);
  std::shuffle(order.begin(), order.end(), random.gen);
  starts.resize(size_t(count));
  int64_t next = 0;
  for (int64_t block : order)
    for (int64_t i = 0; i < own; ++i) {
      int64_t &start = starts[size_t(block * own + i)];
      start = next + (random.chance(3) ? random.pick(0, 99) : 0);
      next = start + size / count;
    }
  return starts;
}

int64_t Attention::place(const Ref &starts, int64_t piecesOf, int dim,
                         int64_t size, int64_t i) {
  int64_t first = c.origin.buffer < 0 ? 0 : memory.as<int64_t>(c.origin)[dim];
  if (starts.buffer < 0)
    return first + i;
  int64_t piece = size / piecesOf;
  return memory.as<int64_t>(starts)[i / piece] + first + i % piece;
}

void Attention::chooseSizes(Random &random, int64_t largestSize) {
  c.batch = random.pick(1, 2);
  c.kvHeads = random.pick(1, 2);
  c.heads = c.kvHeads * random.pick(1, c.kvHeads == 1 ? 3 : 2);
  c.queries = random.pick(1, random.chance(4) ? 140 : 70);
  c.keys = random.chance(2) ? c.queries
                            : random.pick(1, random.chance(4) ? 200 : 90);
  c.headSize = random.chance(3) ? largestSize : random.pick(1, largestSize);
  c.valueSize = random.chance(2) ? c.headSize : random.pick(1, largestSize);
  c.scale = 1.0f / std::sqrt(float(c.headSize));
  c.causal = random.chance(2);
  c.window = random.chance(3) ? random.pick(1, 60) : 0;
  c.queryBlock = random.pick(1, 70);
  c.dropout = random.chance(2) ? 0.3f : 0.0f;
  c.dropoutId = random.pick(0, 100);
  if (random.chance(3)) {
    c.blocks = random.pick(2, 5);
    c.queries = c.blocks * (1 + c.queries / c.blocks);
    c.keys = c.blocks * (1 + c.keys / c.blocks);
  }
  if (random.chance(25))
    c.queries = 0;
  else if (random.chance(25))
    c.keys = 0;
}

/// Strides of a bias or a mask, dense but for gaps, that repeats some
/// dimensions. Returns its elements.
int64_t Attention::broadcast(Random &random, int64_t (&strides)[4]) const {
  int64_t sizes[4] = {c.batch, c.heads, c.queries, c.keys}, step = 1;
  bool queries = !random.chance(3);
  if (queries)
    sizes[3] /= c.blocks;
  for (int d = 3; d >= 0; --d) {
    bool has = d == 2 ? queries : !random.chance(d == 3 ? 4 : 2);
    strides[d] = has ? step : 0;
    if (strides[d]) {
      step *= std::max<int64_t>(1, sizes[d]);
      step += random.chance(3) ? random.pick(1, 5) : 0;
    }
  }
  return step;
}

Attention::Attention(Random &random, int64_t largestSize, bool special,
                     DType heads)
    : headType(heads) {
  chooseSizes(random, largestSize);
  std::vector<int64_t> origin(4);
  if (random.chance(2)) {
    origin = {random.pick(0, 5), random.pick(0, 3), random.pick(0, 20),
              random.chance(2) ? 64 * random.pick(0, 2) : random.pick(0, 99)};
    c.origin = memory.add(origin);
  }
  if (random.chance(3))
    if (std::vector<int64_t> starts = pieces(random, c.queries);
        !starts.empty()) {
      c.queryStarts = memory.add(starts);
      c.queryPieces = int64_t(starts.size());
    }
  if (random.chance(3))
    if (std::vector<int64_t> starts = pieces(random, c.keys); !starts.empty()) {
      c.keyStarts = memory.add(starts);
      c.keyPieces = int64_t(starts.size());
    }
  c.globalHeads = c.heads + origin[1];
  c.globalQueries = c.globalKeys = 1;
  for (int64_t i = 0; i < c.queries; ++i)
    c.globalQueries = std::max(c.globalQueries, queryPlace(i) + 1);
  for (int64_t j = 0; j < c.keys; ++j)
    c.globalKeys = std::max(c.globalKeys, keyPlace(j) + 1);

  if (special || random.chance(2)) {
    std::vector<float> bias = random.floats(broadcast(random, c.biasStrides),
                                            random.chance(5) ? 8.0f : 0.5f);
    // Many hidden keys, and rows without any other.
    if (random.chance(2))
      for (size_t i = 0; i < bias.size(); ++i)
        if (random.chance(3) || i / 40 % 3 == 1)
          bias[i] = -INFINITY;
    // In some, only numbers that are none are seen beside hidden keys.
    if (bool hides = special && random.chance(2); special)
      for (float &x : bias) {
        if (hides)
          x = random.chance(60) ? NAN : -INFINITY;
        else if (random.chance(100))
          x = random.chance(2) ? INFINITY : NAN;
      }
    c.bias = memory.add(bias, 4);
  }
  if (random.chance(3)) {
    std::vector<char> mask(size_t(broadcast(random, c.maskStrides)));
    for (size_t i = 0; i < mask.size(); ++i)
      mask[i] = random.chance(4) || i / 50 % 5 == 1 ? 0 : 1;
    c.mask = memory.add(mask, 1);
  }
  if (random.chance(3)) {
    // In any order, or packed documents one after another.
    int64_t document = random.chance(2) ? 1 : random.pick(5, 60);
    std::vector<int64_t> own, other;
    for (int64_t i = 0; i < c.batch * c.queries; ++i)
      own.push_back(document == 1 ? random.pick(0, 2)
                                  : i % c.queries / document);
    for (int64_t i = 0; i < c.batch * c.keys; ++i)
      other.push_back(document == 1 ? random.pick(0, 1)
                                    : i % c.keys / document);
    c.querySegments = memory.add(own);
    c.keySegments = memory.add(other);
  }
  if (c.dropout > 0.0f)
    c.rng = memory.add(std::vector<int64_t>{random.pick(0, INT64_MAX) *
                                                (random.chance(2) ? 1 : -1),
                                            random.pick(0, 1ll << 40)});
  c.q = view(random, c.heads, c.queries, c.headSize, false);
  c.k = view(random, c.kvHeads, c.keys, c.headSize, false);
  c.v = view(random, c.kvHeads, c.keys, c.valueSize, false);
  c.dO = view(random, c.heads, c.queries, c.valueSize, false);
  int64_t rows = c.batch * c.heads * c.queries;
  c.onto = random.chance(3);
  c.o = view(random, c.heads, c.queries, c.valueSize, !c.onto);
  int64_t numbers = c.bias.buffer >= 0 ? 2 : 1;
  if (c.onto) {
    std::vector<float> sums = random.floats(rows * numbers);
    for (int64_t i = 0; i < rows; ++i)
      if (random.chance(4)) {
        sums[size_t(i * numbers)] = -INFINITY;
        if (numbers == 2)
          sums[size_t(i * 2 + 1)] = 0.0f;
      }
    c.lse = memory.add(sums, 4);
  } else {
    c.lse = memory.add(rows * numbers * 4, 4);
  }
  c.dQ = view(random, c.heads, c.queries, c.headSize, true);
  c.dK = view(random, c.kvHeads, c.keys, c.headSize, true);
  c.dV = view(random, c.kvHeads, c.keys, c.valueSize, true);
  o = {"o", c.o, c.heads, c.queries, c.valueSize, {}};
  dQ = {"dQ", c.dQ, c.heads, c.queries, c.headSize, {}, 1};
  // Gradients of scores vanish where one key has all the weight.
  dK = {"dK", c.dK, c.kvHeads, c.keys, c.headSize, {}, 1};
  dV = {"dV", c.dV, c.kvHeads, c.keys, c.valueSize, {}};
  if (c.bias.buffer >= 0 && !random.chance(5)) {
    // Dense: as a view of one row.
    int64_t sizes[4] = {c.batch, c.heads, c.queries, c.keysOf(c.biasStrides)};
    int64_t elements = 1;
    for (int d = 0; d < 4; ++d)
      elements *= c.biasStrides[d] ? sizes[d] : 1;
    c.dBias = memory.add(4 * elements, 4);
    HeadView row;
    row.ref = c.dBias;
    dBias = {"dBias", row, 1, 1, elements, {}};
  }
  c.scratchBytesPerThread =
      std::max(attentionScratchBytes(c, false), attentionScratchBytes(c, true));
}

AttentionPointers Attention::pointers(Memory &memory) const {
  AttentionPointers p;
  p.q = memory.as<float>(c.q.ref);
  p.k = memory.as<float>(c.k.ref);
  p.v = memory.as<float>(c.v.ref);
  p.o = memory.as<float>(c.o.ref);
  p.lse = memory.as<float>(c.lse);
  p.bias = memory.as<float>(c.bias);
  p.mask = memory.as<uint8_t>(c.mask);
  p.querySegments = memory.as<int64_t>(c.querySegments);
  p.keySegments = memory.as<int64_t>(c.keySegments);
  p.rng = memory.as<int64_t>(c.rng);
  p.origin = memory.as<int64_t>(c.origin);
  p.queryStarts = memory.as<int64_t>(c.queryStarts);
  p.keyStarts = memory.as<int64_t>(c.keyStarts);
  p.dO = memory.as<float>(c.dO.ref);
  p.dQ = memory.as<float>(c.dQ.ref);
  p.dK = memory.as<float>(c.dK.ref);
  p.dV = memory.as<float>(c.dV.ref);
  p.dBias = memory.as<float>(c.dBias);
  return p;
}

void Attention::runProcessor(Memory &memory, bool backward) const {
  ThreadTeam team(1);
  std::vector<char> scratch(size_t(c.scratchBytesPerThread) + 64, char(0xff));
  AttentionPointers p = pointers(memory);
  p.scratch = scratch.data();
  p.scratch += (64 - reinterpret_cast<uintptr_t>(p.scratch) % 64) % 64;
  (backward ? attentionBackward : attentionForward)(c, p, team);
}

/// The score of a query and a key, -infinity if the key is hidden.
double Attention::score(const AttentionPointers &p, int64_t b, int64_t h,
                        int64_t i, int64_t j) {
  int64_t g = h / (c.heads / c.kvHeads);
  int64_t block = i / (c.queries / c.blocks);
  auto in = [](const HeadView &w, int64_t b, int64_t h, int64_t i) {
    return b * w.strideBatch + h * w.strideHead + i * w.stridePosition;
  };
  auto extra = [&](const int64_t (&strides)[4], int64_t j) {
    int64_t key = strides[2] ? j - block * (c.keys / c.blocks) : j;
    return b * strides[0] + h * strides[1] + i * strides[2] + key * strides[3];
  };
  double x = 0;
  for (int64_t d = 0; d < c.headSize; ++d)
    x += double(p.q[in(c.q, b, h, i) + d]) * p.k[in(c.k, b, g, j) + d];
  x *= c.scale;
  int64_t diagonal = queryPlace(i) + c.globalKeys - c.globalQueries;
  bool hidden = block != j / (c.keys / c.blocks) ||
                (c.causal && keyPlace(j) > diagonal) ||
                (c.window > 0 && keyPlace(j) <= diagonal - c.window);
  if (p.mask && !hidden)
    hidden = !p.mask[extra(c.maskStrides, j)];
  if (p.querySegments)
    hidden |=
        p.querySegments[b * c.queries + i] != p.keySegments[b * c.keys + j];
  if (p.bias && !hidden)
    x += p.bias[extra(c.biasStrides, j)];
  return hidden ? -INFINITY : x;
}

/// By what dropout scales the weight of a key.
double Attention::kept(const AttentionPointers &p, const philox::Stream &stream,
                       int64_t b, int64_t h, int64_t i, int64_t j) {
  if (c.dropout <= 0)
    return 1.0;
  int64_t paddedKeys = (c.globalKeys + 63) / 64 * 64;
  int64_t zero[4] = {}, *origin = zero;
  if (p.origin)
    origin = const_cast<int64_t *>(p.origin);
  auto e = uint64_t(origin[0] + b);
  e = e * uint64_t(c.globalHeads) + uint64_t(origin[1] + h);
  e = e * uint64_t(c.globalQueries) + uint64_t(queryPlace(i));
  e = e * uint64_t(paddedKeys) + uint64_t(keyPlace(j));
  return philox::draw(stream, e) >= philox::threshold(c.dropout)
             ? double(philox::keepScale(c.dropout))
             : 0.0;
}

/// Values of the forward pass alone if `onto`: gradients are then those of the
/// scores of these keys, given the sums over all.
void Attention::reference(Memory &memory) {
  AttentionPointers p = pointers(memory);
  auto clear = [&](Result &r) {
    r.expected.assign(size_t(c.batch * r.heads * r.positions * r.channels), 0);
    r.roundings = r.expected;
  };
  for (Result *r : {&o, &dQ, &dK, &dV, &dBias})
    clear(*r);
  // One row, whatever the batches.
  dBias.expected.assign(size_t(dBias.channels), 0);
  dBias.roundings = dBias.expected;
  int64_t rows = c.batch * c.heads * c.queries;
  lse.assign(size_t(rows), -INFINITY);
  Doubles mass(dBias.expected.size());
  auto in = [](const HeadView &w, int64_t b, int64_t h, int64_t i) {
    return b * w.strideBatch + h * w.strideHead + i * w.stridePosition;
  };
  auto out = [](const Result &r, int64_t b, int64_t h, int64_t i) {
    return size_t(((b * r.heads + h) * r.positions + i) * r.channels);
  };
  philox::Stream stream;
  if (p.rng)
    stream = {uint64_t(p.rng[0]), uint32_t(c.dropoutId), uint32_t(p.rng[1])};
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t i = 0; i < c.queries; ++i) {
        int64_t g = h / (c.heads / c.kvHeads);
        int64_t block = i / (c.queries / c.blocks);
        Doubles s(size_t(c.keys)), keep(size_t(c.keys), 1.0),
            dp(size_t(c.keys));
        double max = -INFINITY, total = 0;
        for (int64_t j = 0; j < c.keys; ++j) {
          s[size_t(j)] = score(p, b, h, i, j);
          max = std::max(max, s[size_t(j)]);
          keep[size_t(j)] = kept(p, stream, b, h, i, j);
        }
        int64_t row = (b * c.heads + h) * c.queries + i;
        double before = -INFINITY;
        if (c.onto)
          before = p.bias ? double(p.lse[2 * row]) + p.lse[2 * row + 1]
                          : double(p.lse[row]);
        double top = std::max(max, before);
        const float *old = p.o + in(c.o, b, h, i);
        if (top == -INFINITY) {
          for (int64_t d = 0; d < c.valueSize && c.onto; ++d)
            o.expected[out(o, b, h, i) + size_t(d)] = old[d];
          continue;
        }
        total = std::exp(before - top);
        for (double x : s)
          total += std::exp(x - top);
        lse[size_t(row)] = top + std::log(total);
        for (int64_t d = 0; d < c.valueSize && c.onto; ++d)
          o.expected[out(o, b, h, i) + size_t(d)] =
              std::exp(before - top) / total * double(old[d]);
        for (int64_t j = 0; j < c.keys; ++j) {
          double &x = s[size_t(j)];
          x = std::exp(x - top) / total;
          // Probabilities are sums of two numbers; what is less than the least
          // of f16 is lost.
          double least = headType == DType::F16 ? 0x1p-13 : 0;
          double unit = headType == DType::F32 ? 0 : roundoff(headType);
          double rounds = std::max(x * unit, least) * keep[size_t(j)];
          for (int64_t d = 0; d < c.valueSize; ++d) {
            double vd = p.v[in(c.v, b, g, j) + d];
            double od = p.dO[in(c.dO, b, h, i) + d];
            o.roundings[out(o, b, h, i) + size_t(d)] += rounds * std::fabs(vd);
            dV.roundings[out(dV, b, g, j) + size_t(d)] +=
                rounds * std::fabs(od);
            o.expected[out(o, b, h, i) + size_t(d)] += x * keep[size_t(j)] * vd;
            dp[size_t(j)] += od * vd * keep[size_t(j)];
            dV.expected[out(dV, b, g, j) + size_t(d)] +=
                x * keep[size_t(j)] * od;
          }
        }
        double dot = 0, dots = 0;
        for (int64_t d = 0; d < c.valueSize; ++d) {
          double product = o.expected[out(o, b, h, i) + size_t(d)] *
                           double(p.dO[in(c.dO, b, h, i) + d]);
          dot += product;
          dots += std::fabs(product);
        }
        int64_t sizes[4] = {c.batch, c.heads, c.queries,
                            c.keysOf(c.biasStrides)};
        for (int64_t j = 0; j < c.keys; ++j) {
          double ds = s[size_t(j)] * (dp[size_t(j)] - dot);
          // Of the gradient of a score, and before of the output.
          double unit = headType == DType::F32 ? 0 : roundoff(headType);
          double rounds = std::fabs(ds) * unit + s[size_t(j)] * dots;
          if (headType == DType::F16)
            rounds += 0x1p-13;
          for (int64_t d = 0; d < c.headSize; ++d) {
            dQ.roundings[out(dQ, b, h, i) + size_t(d)] +=
                rounds * double(c.scale) *
                std::fabs(double(p.k[in(c.k, b, g, j) + d]));
            dK.roundings[out(dK, b, g, j) + size_t(d)] +=
                rounds * double(c.scale) *
                std::fabs(double(p.q[in(c.q, b, h, i) + d]));
            dQ.expected[out(dQ, b, h, i) + size_t(d)] +=
                ds * double(c.scale) * double(p.k[in(c.k, b, g, j) + d]);
            dK.expected[out(dK, b, g, j) + size_t(d)] +=
                ds * double(c.scale) * double(p.q[in(c.q, b, h, i) + d]);
          }
          if (p.dBias && block == j / (c.keys / c.blocks)) {
            int64_t key =
                c.biasStrides[2] ? j - block * (c.keys / c.blocks) : j;
            int64_t index[4] = {b, h, i, key}, offset = 0;
            for (int d = 0; d < 4; ++d)
              if (c.biasStrides[d])
                offset = offset * sizes[d] + index[d];
            dBias.expected[size_t(offset)] += ds;
            dBias.roundings[size_t(offset)] += s[size_t(j)] * dots;
            double &m = mass[size_t(offset)];
            m += s[size_t(j)] * (std::fabs(dp[size_t(j)]) + std::fabs(dot));
            dBias.mass = std::max(dBias.mass, m);
          }
        }
      }
}

/// Compares results with those of the processor and with the definition, if
/// that was computed; all other memory must be as before.
void Attention::check(Memory &got, Memory &processor, bool backward) const {
  Memory before = memory;
  auto near = [](double a, double b, double norm) {
    return a == b || (std::isnan(a) && std::isnan(b)) ||
           std::fabs(a - b) <= 2e-5 * norm + 1e-6;
  };
  // After it has been compared, an element becomes what it was.
  auto compare = [&](const Result &r) {
    int64_t batches = r.name == "dBias" ? 1 : c.batch;
    double norm = r.mass;
    for (double x : r.expected)
      if (std::isfinite(x))
        norm = std::max(norm, std::fabs(x));
    auto *own = got.as<float>(r.view.ref);
    auto *other = processor.as<float>(r.view.ref);
    auto *old = before.as<float>(r.view.ref);
    size_t index = 0;
    for (int64_t b = 0; b < batches; ++b)
      for (int64_t h = 0; h < r.heads; ++h)
        for (int64_t i = 0; i < r.positions; ++i)
          for (int64_t d = 0; d < r.channels; ++d, ++index) {
            int64_t at = b * r.view.strideBatch + h * r.view.strideHead +
                         i * r.view.stridePosition + d;
            auto place = [&] {
              return r.name + " at " + std::to_string(b) + " " +
                     std::to_string(h) + " " + std::to_string(i) + " " +
                     std::to_string(d);
            };
            double scale = std::max(norm, std::isfinite(other[at])
                                              ? double(std::fabs(other[at]))
                                              : 0.0);
            ASSERT_TRUE(near(own[at], other[at], scale))
                << place() << ": " << own[at] << ", not " << other[at];
            if (!r.expected.empty())
              ASSERT_TRUE(near(own[at], r.expected[index], norm))
                  << place() << ": " << own[at] << ", not " << r.expected[index]
                  << " by definition";
            own[at] = old[at];
          }
  };
  if (backward) {
    for (const Result *r : {&dQ, &dK, &dV})
      compare(*r);
    if (c.dBias.buffer >= 0)
      compare(dBias);
  } else {
    compare(o);
    auto *own = got.as<float>(c.lse), *other = processor.as<float>(c.lse);
    auto *old = before.as<float>(c.lse);
    bool two = c.bias.buffer >= 0;
    for (int64_t i = 0; i < c.batch * c.heads * c.queries; ++i) {
      double a = two ? double(own[2 * i]) + own[2 * i + 1] : double(own[i]);
      double e =
          two ? double(other[2 * i]) + other[2 * i + 1] : double(other[i]);
      ASSERT_TRUE(near(a, e, std::fabs(e)))
          << "lse " << i << ": " << a << " " << e;
      // The first of two is the largest score.
      if (two)
        ASSERT_TRUE(near(own[2 * i], other[2 * i], 1 + std::fabs(other[2 * i])))
            << "largest score " << i << ": " << own[2 * i] << " "
            << other[2 * i];
      if (!lse.empty())
        ASSERT_TRUE(near(a, lse[size_t(i)], std::fabs(e))) << "lse " << i;
      own[two ? 2 * i : i] = old[two ? 2 * i : i];
      if (two)
        own[2 * i + 1] = old[2 * i + 1];
    }
  }
  if (::testing::Test::HasFatalFailure())
    return;
  expectSame(got, before);
}

AttentionCommand Attention::narrowed(Memory &narrow, Memory &wide,
                                     DType results, bool backward) const {
  AttentionCommand own = c;
  own.type = headType;
  own.resultType = results;
  std::map<int32_t, DType> types;
  for (const HeadView *v : {&c.q, &c.k, &c.v, &c.dO})
    types[v->ref.buffer] = headType;
  types[c.o.ref.buffer] = backward ? headType : results;
  for (const HeadView *v : {&c.dQ, &c.dK, &c.dV})
    types[v->ref.buffer] = results;
  narrow = {};
  for (int32_t i = 0; i < int32_t(wide.size()); ++i) {
    std::vector<char> content = wide.content(i);
    std::vector<char> body(content.begin() + Memory::guard,
                           content.end() - Memory::guard);
    auto type = types.find(i);
    if (type == types.end() || type->second == DType::F32) {
      narrow.add(body, wide.shift(i));
      continue;
    }
    std::vector<unsigned short> values(body.size() / 4);
    for (size_t k = 0; k < values.size(); ++k) {
      float x;
      std::memcpy(&x, body.data() + 4 * k, 4);
      values[k] = narrowNumber(x, headType);
    }
    narrow.add(values, wide.shift(i) / 2);
  }
  return own;
}

void Attention::roundOutput(Memory &memory) const {
  float *values = memory.as<float>(c.o.ref);
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t i = 0; i < c.queries; ++i)
        for (int64_t d = 0; d < c.valueSize; ++d) {
          float &x = values[b * c.o.strideBatch + h * c.o.strideHead +
                            i * c.o.stridePosition + d];
          x = rounded(x, headType);
        }
}

void Attention::checkNarrowed(const AttentionCommand &own, Memory &got,
                              Memory &before, Memory &processor,
                              bool backward) const {
  double unit = roundoff(headType);
  auto compare = [&](const Result &r) {
    bool ofBias = r.name == "dBias";
    DType type = ofBias ? DType::F32 : own.resultType;
    double rounds = type == DType::F32 ? 0 : unit, norm = r.mass;
    for (double x : r.expected)
      if (std::isfinite(x))
        norm = std::max(norm, std::fabs(x));
    char *mine = got.at(r.view.ref), *old = before.at(r.view.ref);
    const char *other = processor.at(r.view.ref);
    size_t index = 0;
    for (int64_t b = 0; b < (ofBias ? 1 : c.batch); ++b)
      for (int64_t h = 0; h < r.heads; ++h)
        for (int64_t i = 0; i < r.positions; ++i)
          for (int64_t d = 0; d < r.channels; ++d, ++index) {
            int64_t at = b * r.view.strideBatch + h * r.view.strideHead +
                         i * r.view.stridePosition + d;
            bool defined = !r.expected.empty();
            double x = numberAt(mine, at, type);
            double e =
                defined ? r.expected[index] : numberAt(other, at, DType::F32);
            // Values are less than 8.
            double slack = unit * (defined ? r.roundings[index] : 8.0) +
                           rounds * std::fabs(e) + 2e-5 * norm + 2e-6;
            ASSERT_TRUE(x == e || (std::isnan(x) && std::isnan(e)) ||
                        std::fabs(x - e) <= slack)
                << r.name << " at " << b << " " << h << " " << i << " " << d
                << ": " << x << ", not " << e << ", within " << slack;
            int64_t size = byteSize(type);
            std::memcpy(mine + at * size, old + at * size, size_t(size));
          }
  };
  if (backward) {
    for (const Result *r : {&dQ, &dK, &dV})
      compare(*r);
    if (c.dBias.buffer >= 0)
      compare(dBias);
  } else {
    compare(o);
    // Sums are those of f32.
    auto *mine = got.as<float>(c.lse), *other = processor.as<float>(c.lse);
    auto *old = before.as<float>(c.lse);
    int64_t numbers = c.bias.buffer >= 0 ? 2 : 1;
    for (int64_t i = 0; i < c.batch * c.heads * c.queries; ++i) {
      double a = 0, e = 0;
      for (int64_t k = i * numbers; k < (i + 1) * numbers; ++k) {
        a += double(mine[k]);
        e += double(other[k]);
        mine[k] = old[k];
      }
      ASSERT_TRUE(a == e || (std::isnan(a) && std::isnan(e)) ||
                  std::fabs(a - e) <= 2e-5 * std::fabs(e) + 2e-5)
          << "lse " << i << ": " << a << " " << e;
    }
  }
  if (::testing::Test::HasFatalFailure())
    return;
  expectSame(got, before);
}

void testAttention16(unsigned seed, int64_t largestSize, DType type) {
  Random random(seed);
  Attention t(random, largestSize, /*special=*/false, type);
  SCOPED_TRACE("seed " + std::to_string(seed) + ", up to " +
               std::to_string(largestSize) + " of " + dtypeName(type).str());
  Memory processor = t.memory;
  t.reference(t.memory);
  Command command = commandOf(CommandKind::AttentionForward);
  DType results = random.chance(3) ? DType::F32 : type;
  Memory device;
  command.attention = t.narrowed(device, t.memory, results, false);
  Memory before = device;
  t.runProcessor(processor, false);
  execute(command, device);
  if (::testing::Test::HasFatalFailure())
    return;
  t.checkNarrowed(command.attention, device, before, processor, false);
  if (::testing::Test::HasFatalFailure())
    return;
  // From the results of the processor, rounded.
  t.roundOutput(processor);
  t.c.onto = false;
  command.kind = CommandKind::AttentionBackward;
  command.attention = t.narrowed(device, processor, results, true);
  before = device;
  execute(command, device);
  if (::testing::Test::HasFatalFailure())
    return;
  t.checkNarrowed(command.attention, device, before, processor, true);
}

TEST(AttentionKernels, Attention16) {
  launched.clear();
  for (int seed = 0; seed < count(420, 42); ++seed) {
    ThreadOrder order(seed / 7 + seed);
    constexpr int64_t sizes[] = {32, 17, 64, 40, 96, 128, 256};
    testAttention16(unsigned(seed) + 5000, sizes[seed % 7],
                    seed / 7 % 2 ? DType::BF16 : DType::F16);
    if (HasFatalFailure())
      return;
  }
  // Four kernels for each of five classes and two types.
  if (testAll())
    EXPECT_EQ(launched.size(), 40u);
}

/// Infinite biases and those that are no numbers: as on the processor.
TEST(AttentionKernels, Attention16OfSpecialNumbers) {
  for (int seed = 0; seed < count(40, 8); ++seed) {
    ThreadOrder order(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random{unsigned(seed) + 6000};
    Attention t(random, 24, /*special=*/true,
                seed % 2 ? DType::BF16 : DType::F16);
    Memory processor = t.memory, device;
    Command command = commandOf(CommandKind::AttentionForward);
    command.attention = t.narrowed(device, t.memory, t.headType, false);
    Memory before = device;
    t.runProcessor(processor, false);
    execute(command, device);
    if (HasFatalFailure())
      return;
    t.checkNarrowed(command.attention, device, before, processor, false);
    if (HasFatalFailure())
      return;
  }
}

void testAttention(unsigned seed, int64_t largestSize) {
  Random random(seed);
  Attention t(random, largestSize);
  SCOPED_TRACE("seed " + std::to_string(seed) + ", up to " +
               std::to_string(largestSize));
  Memory processor = t.memory, device = t.memory;
  t.reference(t.memory);
  Command command = commandOf(CommandKind::AttentionForward);
  command.attention = t.c;
  t.runProcessor(processor, false);
  execute(command, device);
  if (::testing::Test::HasFatalFailure())
    return;
  Memory result = device;
  t.check(result, processor, false);
  if (::testing::Test::HasFatalFailure())
    return;
  // Both from the results of the processor.
  t.memory = device = processor;
  command.kind = CommandKind::AttentionBackward;
  t.c.onto = command.attention.onto = false;
  t.runProcessor(processor, true);
  execute(command, device);
  if (::testing::Test::HasFatalFailure())
    return;
  t.check(device, processor, true);
}

TEST(AttentionKernels, Attention) {
  launched.clear();
  for (int seed = 0; seed < count(420, 42); ++seed) {
    // Other orders for each size.
    ThreadOrder order(seed / 7 + seed);
    constexpr int64_t sizes[] = {32, 17, 64, 40, 96, 128, 256};
    testAttention(unsigned(seed), sizes[seed % 7]);
    if (HasFatalFailure())
      return;
  }
  // Four kernels for each of five classes.
  if (testAll())
    EXPECT_EQ(launched.size(), 20u);
}

/// Infinite biases and those that are no numbers: as on the processor.
TEST(AttentionKernels, AttentionOfSpecialNumbers) {
  for (int seed = 0; seed < count(40, 8); ++seed) {
    ThreadOrder order(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random{unsigned(seed) + 1000};
    Attention t(random, 24, /*special=*/true);
    Memory processor = t.memory, device = t.memory;
    Command command = commandOf(CommandKind::AttentionForward);
    command.attention = t.c;
    t.runProcessor(processor, false);
    execute(command, device);
    t.check(device, processor, false);
    if (HasFatalFailure())
      return;
  }
}

/// Documents that are packed in a row: tiles of other documents are not
/// computed. Numbers of one document that are none reach no other one, though a
/// probability of 0 times them would.
TEST(AttentionKernels, OtherDocumentsAreSkipped) {
  constexpr int64_t length = 128, positions = 4 * length, size = 32;
  for (DType type : {DType::F32, DType::BF16, DType::F16})
    for (bool causal : {true, false}) {
      SCOPED_TRACE(dtypeName(type).str() + (causal ? ", causal" : ""));
      Random random{7};
      Memory memory;
      std::vector<int64_t> documents;
      for (int64_t i = 0; i < positions; ++i)
        documents.push_back(i / length);
      auto isPoisoned = [&](int64_t i) { return documents[size_t(i)] == 1; };
      auto view = [&](bool output) {
        HeadView result;
        result.stridePosition = size;
        result.strideHead = result.strideBatch = positions * size;
        std::vector<float> values = random.floats(positions * size);
        for (int64_t i = 0; i < positions * size; ++i)
          if (!output && isPoisoned(i / size))
            values[size_t(i)] = NAN;
        if (type == DType::F32) {
          result.ref = memory.add(values);
          return result;
        }
        std::vector<unsigned short> narrow;
        for (float x : values)
          narrow.push_back(narrowNumber(x, type));
        result.ref = memory.add(narrow);
        return result;
      };
      Command command = commandOf(CommandKind::AttentionForward);
      AttentionCommand &c = command.attention;
      c.batch = c.heads = c.kvHeads = c.globalHeads = 1;
      c.queries = c.keys = c.globalQueries = c.globalKeys = positions;
      c.headSize = c.valueSize = size;
      c.scale = 0.2f;
      c.causal = causal;
      c.type = c.resultType = type;
      c.querySegments = c.keySegments = memory.add(documents);
      for (HeadView *input : {&c.q, &c.k, &c.v, &c.dO})
        *input = view(false);
      for (HeadView *output : {&c.o, &c.dQ, &c.dK, &c.dV})
        *output = view(true);
      c.lse = memory.add(4 * positions, 4);
      c.scratchBytesPerThread = std::max(attentionScratchBytes(c, false),
                                         attentionScratchBytes(c, true));
      c.scratch =
          memory.add(std::max<int64_t>(c.scratchBytesPerThread, 8 * positions));
      auto check = [&](const char *name, const HeadView &results) {
        for (int64_t i = 0; i < positions * size; ++i)
          ASSERT_EQ(std::isnan(numberAt(memory.at(results.ref), i, type)),
                    isPoisoned(i / size))
              << name << " " << i / size;
      };
      execute(command, memory);
      check("o", c.o);
      command.kind = CommandKind::AttentionBackward;
      execute(command, memory);
      check("dQ", c.dQ);
      check("dK", c.dK);
      check("dV", c.dV);
      if (HasFatalFailure())
        return;
    }
}

TEST(AttentionKernels, Limits) {
  Command command = commandOf(CommandKind::AttentionForward);
  command.attention.headSize = 257;
  auto at = [](const Ref &) { return uint64_t(0); };
  auto launches = cuda::planLaunches(command, {at});
  EXPECT_FALSE(!!launches);
  llvm::consumeError(launches.takeError());
}

} // namespace
