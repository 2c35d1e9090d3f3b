//===- CommandKernelsTest.cpp - Command kernels against the processor's ---===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CommandEmulation.h"
#include "cleave/Executable/Cuda/KernelArguments.h"
#include "cleave/Runtime/CPU/DataMovement.h"
#include "cleave/Runtime/CPU/Grouped.h"
#include "cleave/Runtime/CPU/Orthonormalize.h"
#include "cleave/Runtime/CPU/TopK.h"
#include "cleave/Runtime/Communicator/ReduceBlocks.h"
#include "cleave/Support/OrthonormalScratch.h"
#include "cleave/Support/TopKScratch.h"
#include "cleave/Support/TreeOrder.h"

#include <bit>
#include <cmath>
#include <map>

using namespace cleave;
using namespace cleave::runtime;
using namespace cleave::testing;

namespace {

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

/// The first of the largest severity, with its values.
TEST(CommandKernels, Check) {
  for (int seed = 0; seed < 100; ++seed) {
    Random random{unsigned(seed)};
    CheckStatus status{};
    const CheckCommand *failed = nullptr;
    int32_t failedIndex = 0;
    std::vector<Command> commands(6, commandOf(CommandKind::Check));
    std::vector<std::vector<int64_t>> values(6);
    for (int32_t index = 0; index < 6; ++index) {
      CheckCommand &c = commands[size_t(index)].check;
      c.skips = random.chance(2);
      c.room = !c.skips && random.chance(3);
      c.count = int32_t(random.pick(0, 4));
      for (int i = 0; i < c.count; ++i)
        values[size_t(index)].push_back(random.pick(-9, 1 << 20));
      Memory memory;
      c.flag =
          memory.add(std::vector<char>{random.chance(2) ? char(0x10) : char(0)},
                     random.pick(0, 3));
      if (c.count > 0)
        c.values = memory.add(values[size_t(index)]);
      if (!*memory.at(c.flag) &&
          (!failed || failed->severity() < c.severity())) {
        failed = &c;
        failedIndex = index;
      }
      execute(commands[size_t(index)], memory, &status, index);
      ASSERT_EQ(status.failed, failed ? failed->severity() : 0);
      ASSERT_EQ(status.index, failedIndex);
      for (int i = 0; failed && i < failed->count; ++i)
        ASSERT_EQ(status.values[i], values[size_t(failedIndex)][size_t(i)]);
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
// Rows sorted by group
//===----------------------------------------------------------------------===//

TEST(CommandKernels, SortRows) {
  for (int seed = 0; seed < count(100, 24); ++seed) {
    ThreadOrder order(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random{unsigned(seed)};
    Command command = commandOf(CommandKind::SortRows);
    SortRowsCommand &c = command.sortRows;
    c.rows = random.pick(0, random.chance(3) ? 3000 : 40);
    c.size = random.pick(1, random.chance(3) ? 70 : 5);
    // Some are before the first group, or behind the last one.
    std::vector<int64_t> groups(c.rows);
    for (int64_t &group : groups)
      group = random.pick(seed % 3 == 0 ? -2 : 0, c.size + (seed % 3 == 0));
    Memory memory;
    if (seed % 2) {
      std::vector<int32_t> narrow(groups.begin(), groups.end());
      c.groups = memory.add(narrow, 4);
      c.groupType = DType::I32;
    } else {
      c.groups = memory.add(groups, 8);
    }
    if (seed % 4 == 0)
      c.origin = memory.add(std::vector<int64_t>{1}, 8);
    c.order = memory.add(c.rows * 8, 8);
    c.inverse = memory.add(c.rows * 8, 24);
    c.offsets = memory.add((c.size + 1) * 8, 8);
    Memory expected = memory;
    sortRows(c, {expected.at(c.groups),
                 seed % 4 == 0 ? expected.as<int64_t>(c.origin) : nullptr,
                 expected.as<int64_t>(c.order), expected.as<int64_t>(c.inverse),
                 expected.as<int64_t>(c.offsets)});
    execute(command, memory);
    if (HasFatalFailure())
      return;
    expectSame(memory, expected);
    if (HasFatalFailure())
      return;
  }
}

/// Of small integers, of which every sum is exact.
TEST(CommandKernels, GroupedContract) {
  launched.clear();
  for (int seed = 0; seed < count(120, 36); ++seed) {
    ThreadOrder order(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random{unsigned(seed)};
    Command command = commandOf(CommandKind::GroupedContract);
    GroupedContractCommand &c = command.groupedContract;
    c.rows = random.pick(1, 70);
    c.k = random.pick(1, 40);
    c.m = random.pick(1, 40);
    c.groups = random.pick(1, 6);
    c.ranges = random.pick(1, 3);
    c.weightGradient = seed % 2;
    c.transposed = seed / 2 % 2;
    constexpr DType types[] = {DType::F32, DType::BF16, DType::F64};
    c.type = types[seed / 4 % 3];
    int64_t columns = c.weightGradient || !c.transposed ? c.m : c.k,
            depth = c.weightGradient ? c.rows
                    : c.transposed   ? c.m
                                     : c.k;
    c.lda = c.k + random.pick(0, 3);
    c.ldb = columns + random.pick(0, 3);
    c.groupStrideB = depth * c.ldb + random.pick(0, 3);
    std::vector<int64_t> bounds(c.ranges * 2), offsets;
    for (int64_t &bound : bounds)
      bound = random.pick(0, c.rows);
    std::sort(bounds.begin(), bounds.end());
    for (int64_t i = 0; i < c.ranges; ++i) {
      std::vector<int64_t> own{bounds[2 * i], bounds[2 * i + 1]};
      while (int64_t(own.size()) <= c.groups)
        own.push_back(random.pick(bounds[2 * i], bounds[2 * i + 1]));
      std::sort(own.begin(), own.end());
      offsets.insert(offsets.end(), own.begin(), own.end());
    }
    Memory memory;
    auto draw = [&](int64_t elements) {
      std::vector<int> numbers(elements);
      for (int &number : numbers)
        number = int(random.pick(-3, 3));
      if (c.type == DType::F64)
        return memory.add(std::vector<double>(numbers.begin(), numbers.end()),
                          8);
      if (c.type == DType::F32)
        return memory.add(std::vector<float>(numbers.begin(), numbers.end()),
                          4);
      std::vector<uint16_t> narrow;
      for (int number : numbers)
        narrow.push_back(
            uint16_t(std::bit_cast<uint32_t>(float(number)) >> 16));
      return memory.add(narrow, 2);
    };
    c.a = draw(c.rows * c.lda);
    c.b = draw(c.weightGradient ? c.rows * c.ldb : c.groups * c.groupStrideB);
    c.offsets = memory.add(offsets, 8);
    c.out = memory.add((c.weightGradient ? c.groups * c.k : c.rows) * c.m *
                           byteSize(c.resultType()),
                       16);
    c.scratch = memory.add(c.scratchBytes(c.ranges, c.groups), 8);
    Memory expected = memory;
    for (int threads : {1, 3})
      groupedContract(c,
                      {expected.at(c.a), expected.at(c.b),
                       expected.as<int64_t>(c.offsets), expected.at(c.out),
                       expected.as<int64_t>(c.scratch)},
                      ThreadTeam(threads));
    execute(command, memory);
    if (HasFatalFailure())
      return;
    std::memcpy(memory.at(c.scratch), expected.at(c.scratch),
                size_t(c.scratchBytes(c.ranges, c.groups)));
    expectSame(memory, expected);
    if (HasFatalFailure())
      return;
  }
  // With what clears rows in no range.
  EXPECT_EQ(launched.size(), 7u);
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
// Reductions over ranks
//===----------------------------------------------------------------------===//

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
        ASSERT_EQ(emulateLaunch(launch), "");
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

} // namespace
