//===- CommandKernelsTest.cpp - Command kernels against the processor's ---===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CommandKernels.h"
#include "../TestAll.h"
#include "cleave/Runtime/CPU/Attention.h"
#include "cleave/Runtime/CPU/DataMovement.h"
#include "cleave/Runtime/CPU/Orthonormalize.h"
#include "cleave/Runtime/CPU/TopK.h"
#include "cleave/Runtime/CUDA/KernelArguments.h"
#include "cleave/Runtime/Communicator/ReduceBlocks.h"
#include "cleave/Runtime/Core/Philox.h"
#include "cleave/Runtime/Core/ProgramIO.h"
#include "cleave/Support/OrthonormalScratch.h"
#include "cleave/Support/TopKScratch.h"
#include "cleave/Support/TreeOrder.h"
#include "llvm/ADT/APFloat.h"
#include "gtest/gtest.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <set>

using namespace cleave;
using namespace cleave::runtime;

namespace {

/// Configurations of a test: all, or a sample.
int count(int all, int sample) { return testAll() ? all : sample; }

/// The order in which threads of configuration `seed` take turns, unless one is
/// chosen for all.
class ThreadOrder {
public:
  explicit ThreadOrder(int seed) : own(!std::getenv(name)) {
    constexpr const char *orders[] = {"1", "down", "2", "up"};
    if (own)
      setenv(name, orders[seed % 4], 1);
  }
  ~ThreadOrder() {
    if (own)
      unsetenv(name);
  }

private:
  static constexpr const char *name = "CLEAVE_THREAD_ORDER";
  bool own;
};

/// The kernels that a test has run.
std::set<std::string> launched;

/// Buffers with guards around them. A copy has the same content elsewhere.
class Memory {
public:
  static constexpr size_t guard = 256;
  static constexpr char guardByte = 0x7b;

  /// A buffer of `bytes` bytes that begins `shift` bytes behind an address that
  /// is a multiple of 64. It is filled with the guard's byte.
  Ref add(int64_t bytes, int64_t shift = 0) {
    buffers.emplace_back(size_t(bytes + shift) + 2 * guard + 64, guardByte);
    starts.push_back(guard + size_t(shift));
    return {int32_t(buffers.size()) - 1, 0};
  }
  template <typename T>
  Ref add(const std::vector<T> &values, int64_t shift = 0) {
    Ref ref = add(int64_t(values.size() * sizeof(T)), shift);
    std::memcpy(at(ref), values.data(), values.size() * sizeof(T));
    return ref;
  }

  char *at(const Ref &ref) {
    std::vector<char> &buffer = buffers[size_t(ref.buffer)];
    auto address = reinterpret_cast<uintptr_t>(buffer.data());
    // Vectors begin anywhere: contents are relative to an aligned address.
    size_t shift = (64 - address % 64) % 64;
    if (shifts.size() < buffers.size())
      shifts.resize(buffers.size());
    size_t &have = shifts[size_t(ref.buffer)];
    if (have != shift) {
      size_t from = starts[size_t(ref.buffer)];
      std::vector<char> content(buffer.begin() + long(from - guard + have),
                                buffer.end() - long(64 - have));
      std::fill(buffer.begin(), buffer.end(), guardByte);
      std::copy(content.begin(), content.end(),
                buffer.begin() + long(from - guard + shift));
      have = shift;
    }
    return buffer.data() + shift + starts[size_t(ref.buffer)] + ref.offset;
  }
  template <typename T> T *as(const Ref &ref) {
    return ref.buffer < 0 ? nullptr : reinterpret_cast<T *>(at(ref));
  }

  size_t size() const { return buffers.size(); }
  /// How far behind a multiple of 64 a buffer begins.
  int64_t shift(int32_t buffer) const {
    return int64_t(starts[size_t(buffer)] - guard);
  }
  /// The content of a buffer with its guards.
  std::vector<char> content(int32_t buffer) {
    char *begin = at({buffer, 0}) - guard;
    size_t bytes =
        buffers[size_t(buffer)].size() - 64 - (starts[size_t(buffer)] - guard);
    return {begin, begin + bytes};
  }

private:
  std::vector<std::vector<char>> buffers;
  std::vector<size_t> starts, shifts;
};

Command commandOf(CommandKind kind) {
  Command command;
  command.kind = kind;
  return command;
}

/// Runs the launches of a command on `memory`. Its scratch memory has guards,
/// too.
void execute(const Command &command, Memory &memory, CheckStatus *status = {},
             int32_t index = 0) {
  int64_t bytes = cuda::launchScratchBytes(command);
  ASSERT_GE(bytes, 0);
  std::vector<char> scratch(size_t(bytes) + 1024, 0x7b);
  char *begin = scratch.data() + 256;
  begin += (256 - reinterpret_cast<uintptr_t>(begin) % 256) % 256;
  auto at = [&](const Ref &ref) {
    return reinterpret_cast<uint64_t>(memory.at(ref));
  };
  cuda::Addresses addresses{at, reinterpret_cast<uint64_t>(begin),
                            reinterpret_cast<uint64_t>(status), index};
  llvm::Expected<std::vector<cuda::Launch>> launches =
      cuda::planLaunches(command, addresses);
  ASSERT_TRUE(!!launches) << llvm::toString(launches.takeError());
  for (const cuda::Launch &launch : *launches) {
    ASSERT_EQ(cleave::testing::emulateLaunch(launch), "");
    launched.insert(launch.symbol);
  }
  for (char *p = scratch.data(); p != scratch.data() + scratch.size(); ++p)
    ASSERT_TRUE((p >= begin && p < begin + bytes) || *p == 0x7b)
        << "wrote beside scratch memory";
}

void expectSame(Memory &a, Memory &b) {
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_TRUE(a.content(int32_t(i)) == b.content(int32_t(i)))
        << "buffer " << i;
}

class Random {
public:
  explicit Random(unsigned seed) : gen(seed) {}
  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(gen);
  }
  bool chance(int one) { return pick(1, one) == 1; }
  std::vector<float> floats(int64_t n, float spread = 1.0f) {
    std::normal_distribution<float> normal(0.0f, spread);
    std::vector<float> values(static_cast<size_t>(n));
    for (float &value : values)
      value = normal(gen);
    return values;
  }
  std::vector<char> bytes(int64_t n) {
    std::vector<char> values(static_cast<size_t>(n));
    for (char &value : values)
      value = char(gen());
    return values;
  }
  std::mt19937 gen;
};

//===----------------------------------------------------------------------===//
// Copy, fill, check, scatter-add
//===----------------------------------------------------------------------===//

TEST(CommandKernels, Copy) {
  launched.clear();
  ThreadTeam team(1);
  for (int seed = 0; seed < count(600, 150); ++seed) {
    ThreadOrder order(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random{unsigned(seed)};
    Command command = commandOf(CommandKind::Copy);
    CopyCommand &c = command.copy;
    c.elementBytes = 1 << random.pick(0, 3);
    auto rank = size_t(random.pick(0, random.chance(3) ? 8 : 4));
    // Reversed dimensions are a transposition.
    bool reverses = seed % 4 == 0;
    if (reverses)
      rank = size_t(random.pick(2, 4));
    int64_t elements = 1;
    for (size_t i = 0; i < rank; ++i) {
      int64_t limit = std::max<int64_t>(1, 20000 / elements);
      int64_t size = random.pick(1, std::min<int64_t>(limit, 90));
      if (random.chance(3))
        size = std::min<int64_t>(limit, 8 << random.pick(0, 4));
      if (reverses)
        size = std::min(limit, random.pick(8, 40));
      if (random.chance(40))
        size = 0;
      c.sizes.push_back(size);
      elements *= std::max<int64_t>(1, size);
    }
    // Any order in either tensor, with gaps of even or odd sizes, and repeated
    // values of the source.
    auto strides = [&](bool repeats) {
      std::vector<size_t> order;
      for (size_t i = 0; i < rank; ++i)
        order.push_back(i);
      if (reverses && repeats)
        std::reverse(order.begin(), order.end());
      else if (!reverses && random.chance(2))
        std::shuffle(order.begin(), order.end(), random.gen);
      std::vector<int64_t> result(rank);
      int64_t step = random.chance(8) ? random.pick(2, 3) : 1;
      for (size_t i = rank; i-- > 0;) {
        if (repeats && random.chance(6))
          continue;
        result[order[i]] = step;
        step *= std::max<int64_t>(1, c.sizes[order[i]]);
        step += random.chance(4) ? random.pick(1, 9) : 0;
        if (random.chance(4))
          step = (step + 15) / 16 * 16;
      }
      return result;
    };
    c.srcStrides = strides(true);
    c.dstStrides = strides(false);
    auto extent = [&](const std::vector<int64_t> &s) {
      int64_t last = 1;
      for (size_t i = 0; i < rank; ++i)
        last += std::max<int64_t>(0, c.sizes[i] - 1) * s[i];
      return last * c.elementBytes;
    };
    auto shift = [&] {
      return random.chance(2) ? 0 : random.pick(0, 8) * c.elementBytes;
    };
    Memory memory;
    c.src = memory.add(random.bytes(extent(c.srcStrides)), shift());
    c.dst = memory.add(extent(c.dstStrides), shift());
    Memory expected = memory;
    StridedCopy(c).execute(expected.at(c.src), expected.at(c.dst), team);
    execute(command, memory);
    expectSame(memory, expected);
    if (HasFatalFailure())
      return;
  }
  // Elements of 1 to 16 bytes, and transpositions of 1 to 8.
  EXPECT_EQ(launched.size(), 9u);
}

TEST(CommandKernels, Fill) {
  ThreadTeam team(1);
  for (int seed = 0; seed < count(200, 60); ++seed) {
    ThreadOrder order(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random{unsigned(seed)};
    Command command = commandOf(CommandKind::Fill);
    FillCommand &c = command.fill;
    c.elementBytes = 1 << random.pick(0, 3);
    c.bytes = c.elementBytes * random.pick(0, random.chance(3) ? 9000 : 20);
    c.pattern = random.gen() * 0x123456789abcdefull;
    Memory memory;
    c.dst = memory.add(c.bytes, c.elementBytes * random.pick(0, 16));
    Memory expected = memory;
    fill(c, expected.at(c.dst), team);
    execute(command, memory);
    expectSame(memory, expected);
    if (HasFatalFailure())
      return;
  }
}

/// The first that ends the run, or else the first that skips the step.
TEST(CommandKernels, Check) {
  for (int seed = 0; seed < 100; ++seed) {
    Random random{unsigned(seed)};
    CheckStatus status{};
    const CheckCommand *failed = nullptr;
    int32_t failedIndex = 0;
    std::vector<Command> commands(6, commandOf(CommandKind::Check));
    for (int32_t index = 0; index < 6; ++index) {
      CheckCommand &c = commands[size_t(index)].check;
      c.skips = random.chance(2);
      Memory memory;
      c.flag =
          memory.add(std::vector<char>{random.chance(2) ? char(0x10) : char(0)},
                     random.pick(0, 3));
      if (!*memory.at(c.flag) && (!failed || (failed->skips && !c.skips))) {
        failed = &c;
        failedIndex = index;
      }
      execute(commands[size_t(index)], memory, &status, index);
      ASSERT_EQ(status.failed, failed ? failed->skips ? 1 : 2 : 0);
      ASSERT_EQ(status.index, failedIndex);
    }
  }
}

TEST(CommandKernels, ScatterAdd) {
  ThreadTeam team(1);
  for (int seed = 0; seed < count(300, 40); ++seed) {
    ThreadOrder order(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random{unsigned(seed)};
    Command command = commandOf(CommandKind::ScatterAdd);
    ScatterAddCommand &c = command.scatterAdd;
    c.count = random.pick(0, random.chance(4) ? 5000 : 300);
    c.columns = random.chance(3) ? random.pick(0, 300) : random.pick(1, 20);
    if (c.count > 300)
      c.columns = random.pick(1, 40);
    constexpr int64_t ranges[] = {0, 1, 7, 255, 256, 257, 3000, 66000};
    c.outRows = ranges[random.pick(seed % 8 ? 1 : 0, 7)];
    if (c.outRows > 3000)
      c.columns = random.pick(1, 5);
    c.idType = random.chance(2) ? DType::I64 : DType::I32;
    c.accumulate = random.chance(2);
    c.hasSkip = random.chance(2);
    c.skipIndex = random.chance(2) ? random.pick(0, 8) : -100;
    std::vector<int64_t> ids;
    int64_t spread = random.chance(2) ? c.outRows : 5;
    for (int64_t i = 0; i < c.count; ++i) {
      ids.push_back(random.pick(0, std::max<int64_t>(spread - 1, 0)));
      if (random.chance(9))
        ids.back() = random.chance(2) ? -100 : c.outRows + random.pick(0, 3);
      else if (random.chance(3))
        ids.back() = std::min<int64_t>(3, c.outRows);
    }
    Memory memory;
    c.rows = memory.add(random.floats(c.count * c.columns), 4);
    c.ids = c.idType == DType::I64
                ? memory.add(ids)
                : memory.add(std::vector<int32_t>(ids.begin(), ids.end()));
    c.out = memory.add(random.floats(c.outRows * c.columns), 8);
    Memory expected = memory;
    scatterAdd(c, expected.as<float>(c.rows), expected.at(c.ids),
               expected.as<float>(c.out), team);
    execute(command, memory);
    expectSame(memory, expected);
    if (HasFatalFailure())
      return;
  }
}

//===----------------------------------------------------------------------===//
// The largest elements
//===----------------------------------------------------------------------===//

TEST(CommandKernels, TopK) {
  launched.clear();
  ThreadTeam team(1);
  for (int seed = 0; seed < count(100, 24); ++seed) {
    ThreadOrder order(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random{unsigned(seed)};
    Command command = commandOf(CommandKind::TopK);
    TopKCommand &c = command.topK;
    c.rows = random.pick(1, random.chance(3) ? 300 : 4);
    c.columns = random.pick(1, random.chance(3) ? 3000 : 300);
    if (seed % 8 == 0) {
      c.rows = random.pick(1, 2);
      c.columns = random.pick(TopKScratch::kShort - 1, 70000);
    }
    c.k = random.pick(1, random.chance(3) ? c.columns
                                          : std::min<int64_t>(c.columns, 20));
    std::vector<float> in = random.floats(c.rows * c.columns);
    // Few values, edges among them.
    constexpr float edges[] = {NAN,   INFINITY, -INFINITY, 0.0f,
                               -0.0f, 1e-45f,   -1.0f,     2.0f};
    for (float &x : in)
      if (seed % 3 == 1)
        x = edges[random.pick(0, 7)];
    Memory memory;
    c.in = memory.add(in, 4);
    c.values = memory.add(c.rows * c.k * 4, 12);
    c.indices = memory.add(c.rows * c.k * 8, 8);
    TopKScratch place(c.rows, c.columns, c.k);
    c.scratch = memory.add(place.bytes, 0);
    Memory expected = memory;
    topK(c, expected.as<float>(c.in), expected.as<float>(c.values),
         expected.as<int64_t>(c.indices), expected.at(c.scratch), team);
    execute(command, memory);
    if (HasFatalFailure())
      return;
    // Of scratch memory, only what is around it.
    std::memcpy(memory.at(c.scratch), expected.at(c.scratch),
                size_t(place.bytes));
    expectSame(memory, expected);
    if (HasFatalFailure())
      return;
  }
  // With those of the sort, and what clears histograms.
  EXPECT_EQ(launched.size(), 10u);
}

//===----------------------------------------------------------------------===//
// Orthonormal columns
//===----------------------------------------------------------------------===//

/// Sums are in another order, and rounded to f32 at the end.
TEST(CommandKernels, Orthonormalize) {
  ThreadTeam team(1);
  for (int seed = 0; seed < count(60, 14); ++seed) {
    ThreadOrder order(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random{unsigned(seed)};
    Command command = commandOf(CommandKind::Orthonormalize);
    OrthonormalizeCommand &c = command.orthonormalize;
    c.batch = random.pick(1, 3);
    c.rows = random.pick(1, random.chance(3) ? 600 : 40);
    c.columns = random.pick(1, std::min<int64_t>(c.rows, 70));
    if (seed == 0) {
      c.rows = 66000;
      c.batch = c.columns = 2;
    }
    constexpr float scales[] = {1e-30f, 1.0f, 1e30f};
    std::vector<float> in =
        random.floats(c.batch * c.rows * c.columns, scales[random.pick(0, 2)]);
    // Columns that depend on others, and numbers that are not finite.
    for (int64_t i = 0; i < int64_t(in.size()) && seed % 3 == 1; ++i)
      if (i % c.columns % 3 == 1)
        in[size_t(i)] = seed % 2 ? 0 : -2 * in[size_t(i) - 1];
    if (seed % 5 == 2)
      in[size_t(random.pick(0, int64_t(in.size()) - 1))] = INFINITY;
    Memory memory;
    c.in = memory.add(in, 4);
    c.out = seed % 4 == 3 ? c.in : memory.add(int64_t(in.size()) * 4, 12);
    OrthonormalScratch place(c.rows, c.columns);
    c.scratch = memory.add(place.bytes(c.batch), 8);
    Memory expected = memory;
    orthonormalize(c, expected.as<float>(c.in), expected.as<float>(c.out),
                   expected.as<double>(c.scratch), team);
    execute(command, memory);
    if (HasFatalFailure())
      return;
    const float *one = memory.as<float>(c.out),
                *other = expected.as<float>(c.out);
    for (size_t i = 0; i < in.size(); ++i)
      ASSERT_TRUE(std::abs(one[i] - other[i]) <= 6e-8f ||
                  (std::isnan(one[i]) && std::isnan(other[i])))
          << i << ": " << one[i] << " and " << other[i];
    // Only what is around the contents is of interest.
    for (const Ref &ref : {c.out, c.scratch}) {
      int64_t bytes =
          ref == c.out ? int64_t(in.size()) * 4 : place.bytes(c.batch);
      std::memcpy(memory.at(ref), expected.at(ref), size_t(bytes));
    }
    expectSame(memory, expected);
    if (HasFatalFailure())
      return;
  }
}

//===----------------------------------------------------------------------===//
// Attention
//===----------------------------------------------------------------------===//

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

Attention::Attention(Random &random, int64_t largestSize, bool special,
                     DType heads)
    : headType(heads) {
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

  auto broadcast = [&](int64_t (&strides)[4]) {
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
  };
  if (special || random.chance(2)) {
    std::vector<float> bias =
        random.floats(broadcast(c.biasStrides), random.chance(5) ? 8.0f : 0.5f);
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
    std::vector<char> mask(size_t(broadcast(c.maskStrides)));
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
  int64_t paddedKeys = (c.globalKeys + 63) / 64 * 64;
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
        auto extra = [&](const int64_t (&strides)[4], int64_t j) {
          int64_t key = strides[2] ? j - block * (c.keys / c.blocks) : j;
          return b * strides[0] + h * strides[1] + i * strides[2] +
                 key * strides[3];
        };
        for (int64_t j = 0; j < c.keys; ++j) {
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
            hidden |= p.querySegments[b * c.queries + i] !=
                      p.keySegments[b * c.keys + j];
          if (p.bias && !hidden)
            x += p.bias[extra(c.biasStrides, j)];
          s[size_t(j)] = hidden ? -INFINITY : x;
          max = std::max(max, s[size_t(j)]);
          if (c.dropout > 0) {
            int64_t zero[4] = {}, *origin = zero;
            if (p.origin)
              origin = const_cast<int64_t *>(p.origin);
            auto e = uint64_t(origin[0] + b);
            e = e * uint64_t(c.globalHeads) + uint64_t(origin[1] + h);
            e = e * uint64_t(c.globalQueries) + uint64_t(queryPlace(i));
            e = e * uint64_t(paddedKeys) + uint64_t(keyPlace(j));
            keep[size_t(j)] =
                philox::draw(stream, e) >= philox::threshold(c.dropout)
                    ? double(philox::keepScale(c.dropout))
                    : 0.0;
          }
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

TEST(CommandKernels, Attention16) {
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
TEST(CommandKernels, Attention16OfSpecialNumbers) {
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

TEST(CommandKernels, Attention) {
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
TEST(CommandKernels, AttentionOfSpecialNumbers) {
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

/// The bits of ranks of the processor, of any bytes as elements: infinite ones,
/// zeros of both signs and NaN too.
TEST(CommandKernels, Reductions) {
  const std::pair<const char *, int> types[] = {
      {"f64", CLEAVE_F64}, {"f32", CLEAVE_F32}, {"bf16", CLEAVE_BF16},
      {"i64", CLEAVE_I64}, {"i32", CLEAVE_I32}, {"i8", CLEAVE_I8},
      {"i1", CLEAVE_I1}};
  const char *const operations[] = {"sum", "max", "min"};
  std::mt19937 random(11);
  for (auto [name, type] : types)
    for (int operation = 0; operation < 3; ++operation)
      for (int members : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 33, 64}) {
        SCOPED_TRACE(std::string(name) + " " + operations[operation] + " " +
                     std::to_string(members));
        auto bytes = static_cast<size_t>(elementBytes(type));
        if (bytes == 1 && operation == CLEAVE_SUM)
          continue;
        int64_t count = 300 + members, begin = 7, end = count - 5;
        auto size = static_cast<size_t>(count) * bytes;
        std::vector<std::vector<char>> values(static_cast<size_t>(members),
                                              std::vector<char>(size));
        for (std::vector<char> &own : values)
          for (size_t i = 0; i < size; ++i)
            own[i] = static_cast<char>(random());
        // Special numbers meet each other.
        for (std::vector<char> &own : values)
          for (size_t i = 8; i < 40; ++i) {
            const uint32_t special[] = {0,          0x80000000, 0x7f800000,
                                        0xff800000, 0x7fc00000, 0x3f800000};
            uint32_t bits = special[random() % 6];
            char *at = own.data() + i * bytes;
            if (type == CLEAVE_F32)
              std::memcpy(at, &bits, 4);
            else if (type == CLEAVE_BF16)
              std::memcpy(at, reinterpret_cast<char *>(&bits) + 2, 2);
            else if (type == CLEAVE_F64) {
              double wide = std::bit_cast<float>(bits);
              std::memcpy(at, &wide, 8);
            }
          }
        std::vector<const void *> srcs;
        ReduceArguments a{};
        for (int k = 0; k < members; ++k) {
          srcs.push_back(values[size_t(k)].data());
          a.srcs[k] = values[size_t(cleave::treeOrder(k, members))].data();
        }
        std::vector<char> expected(size, 1), found(size, 1), second(size, 1);
        int64_t stride = 1;
        Block block(1, &count, &stride, &stride);
        void *to = expected.data();
        reduceBlocks(block, type, operation, srcs.data(), members, &to, 1,
                     begin, end);
        a.dsts[0] = found.data();
        a.dsts[1] = second.data();
        a.begin = begin;
        a.end = end;
        a.members = members;
        a.writers = 2;
        cuda::Launch launch;
        launch.symbol =
            std::string("cleave_reduce_") + name + "_" + operations[operation];
        launch.grid[0] = static_cast<uint32_t>((end - begin + 255) / 256);
        launch.block = 256;
        launch.add(a);
        ASSERT_EQ(cleave::testing::emulateLaunch(launch), "");
        EXPECT_EQ(found, second);
        // Of NaN only that it is one: its bits are the device's.
        for (int64_t i = 0; i < count; ++i) {
          char *x = expected.data() + size_t(i) * bytes,
               *y = found.data() + size_t(i) * bytes;
          if (std::memcmp(x, y, bytes) == 0)
            continue;
          auto isNan = [&](const char *at) {
            uint64_t bits = 0;
            std::memcpy(&bits, at, bytes);
            return type == CLEAVE_F64    ? (bits & ~0ull >> 1) > 0x7ffull << 52
                   : type == CLEAVE_F32  ? (bits & 0x7fffffff) > 0x7f800000
                   : type == CLEAVE_BF16 ? (bits & 0x7fff) > 0x7f80
                                         : false;
          };
          EXPECT_TRUE(isNan(x) && isNan(y)) << i;
        }
      }
}

TEST(CommandKernels, Limits) {
  Command command = commandOf(CommandKind::AttentionForward);
  command.attention.headSize = 257;
  auto at = [](const Ref &) { return uint64_t(0); };
  auto launches = cuda::planLaunches(command, {at});
  EXPECT_FALSE(!!launches);
  llvm::consumeError(launches.takeError());
}

} // namespace
