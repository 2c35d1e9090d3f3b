//===- DataMovementTest.cpp - Tests of data movement ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/CPU/DataMovement.h"
#include "gtest/gtest.h"

#include <atomic>
#include <cstring>
#include <random>

using namespace cleave::runtime;

namespace {

TEST(ThreadTeam, CoversEachItemOnce) {
  ThreadTeam team(3);
  EXPECT_EQ(team.size(), 3);
  for (int64_t n : {0, 1, 2, 3, 7, 64, 1000}) {
    for (int64_t align : {1, 16}) {
      std::vector<std::atomic<int>> seen(n);
      team.parallelFor(
          n, 2,
          [&](int64_t begin, int64_t end) {
            EXPECT_EQ(begin % align, 0);
            for (int64_t i = begin; i < end; ++i)
              seen[i]++;
          },
          align);
      team.parallelEach(n, [&](int thread, int64_t i) {
        EXPECT_LT(thread, 3);
        seen[i]++;
      });
      for (auto &count : seen)
        EXPECT_EQ(count, 2);
    }
  }
}

TEST(ScatterAdd, SumsInOrder) {
  std::mt19937 gen(5);
  for (int64_t columns : {1, 7, 33, 96, 200}) {
    for (bool accumulate : {false, true}) {
      ScatterAddCommand c;
      c.count = 500;
      c.columns = columns;
      c.outRows = 40;
      c.accumulate = accumulate;
      c.hasSkip = true;
      c.skipIndex = 3;
      std::vector<float> rows(c.count * columns);
      std::normal_distribution<float> normal;
      for (float &x : rows)
        x = normal(gen);
      std::vector<int64_t> ids(c.count);
      std::vector<int32_t> ids32;
      for (int64_t &id : ids)
        ids32.push_back(static_cast<int32_t>(id = gen() % c.outRows));
      std::vector<float> start(c.outRows * columns, 0.5f), expected = start;
      if (!accumulate)
        std::fill(expected.begin(), expected.end(), 0.0f);
      for (int64_t i = 0; i < c.count; ++i)
        if (ids[i] != 3)
          for (int64_t j = 0; j < columns; ++j)
            expected[ids[i] * columns + j] += rows[i * columns + j];
      for (int threads : {1, 2, 3}) {
        ThreadTeam team(threads);
        std::vector<float> out = start;
        scatterAdd(c, rows.data(), ids.data(), out.data(), team);
        EXPECT_EQ(out, expected);
        ScatterAddCommand narrow = c;
        narrow.idType = DType::I32;
        out = start;
        scatterAdd(narrow, rows.data(), ids32.data(), out.data(), team);
        EXPECT_EQ(out, expected);
      }
    }
  }
}

template <typename T> void checkCopy(unsigned seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 gen(seed);
  ThreadTeam team(2);
  CopyCommand c;
  c.elementBytes = sizeof(T);
  int rank = static_cast<int>(gen() % 6);
  int64_t limit = rank <= 2 ? 400 : 9;
  for (int d = 0; d < rank; ++d)
    c.sizes.push_back(gen() % 12 == 0 ? gen() % 2 : 1 + gen() % limit);
  // Both sides dense in an order of their own, with gaps; some read again.
  auto strides = [&](std::vector<int64_t> &result, bool broadcast) {
    std::vector<int> order;
    for (int d = 0; d < rank; ++d)
      order.push_back(d);
    std::shuffle(order.begin(), order.end(), gen);
    result.assign(rank, 0);
    int64_t step = 1;
    for (int d : order) {
      if (broadcast && gen() % 5 == 0)
        continue;
      result[d] = step;
      step *= std::max<int64_t>(1, c.sizes[d]);
      step += gen() % 4 == 0;
    }
    return step;
  };
  int64_t srcSize = strides(c.srcStrides, true);
  int64_t dstSize = strides(c.dstStrides, false);
  std::vector<T> src(srcSize + 1), dst(dstSize + 1, T(77)), expected = dst;
  for (T &x : src)
    x = T(gen());
  int64_t total = 1;
  for (int64_t size : c.sizes)
    total *= size;
  for (int64_t n = 0; n < total; ++n) {
    int64_t rest = n, from = 0, to = 0;
    for (int d = rank - 1; d >= 0; --d) {
      from += rest % c.sizes[d] * c.srcStrides[d];
      to += rest % c.sizes[d] * c.dstStrides[d];
      rest /= c.sizes[d];
    }
    expected[to] = src[from];
  }
  StridedCopy(c).execute(reinterpret_cast<const char *>(src.data()),
                         reinterpret_cast<char *>(dst.data()), team);
  EXPECT_EQ(dst, expected);
}

TEST(Copy, RandomAgainstDefinition) {
  for (unsigned seed = 0; seed < 150; ++seed) {
    checkCopy<uint8_t>(seed);
    checkCopy<uint16_t>(seed);
    checkCopy<uint32_t>(seed);
    checkCopy<uint64_t>(seed);
  }
}

TEST(Fill, RepeatsThePattern) {
  ThreadTeam team(2);
  for (int64_t bytes : {0, 8, 4096, 1 << 20}) {
    for (int64_t element : {1, 2, 4, 8}) {
      FillCommand c;
      c.bytes = bytes;
      c.elementBytes = element;
      c.pattern = 0x0102030405060708;
      std::vector<char> data(bytes + 8, 99);
      fill(c, data.data(), team);
      for (int64_t i = 0; i < bytes; ++i)
        ASSERT_EQ(data[i], char(8 - i % element));
      for (int64_t i = bytes; i < bytes + 8; ++i)
        ASSERT_EQ(data[i], 99);
    }
  }
}

} // namespace
