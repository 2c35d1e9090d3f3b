//===- GroupedTest.cpp - Tests of matmuls of sorted rows ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/CPU/Grouped.h"
#include "llvm/ADT/STLExtras.h"
#include "gtest/gtest.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

using namespace cleave::runtime;

namespace {

float widen(uint16_t bits) {
  return std::bit_cast<float>(uint32_t(bits) << 16);
}

/// A matmul of random rows, with the smallest and largest of its parts, and
/// numbers of rows around those where the way to compute it changes.
struct Trial {
  GroupedContractCommand c;
  std::vector<int64_t> offsets;
  std::vector<float> a, b;

  Trial(std::mt19937 &gen, DType type, bool gradient, bool transposed) {
    auto pick = [&](int64_t low, int64_t high) {
      return low + int64_t(gen() % uint64_t(high - low + 1));
    };
    constexpr int64_t counts[] = {0, 1, 2, 3, 5, 6, 7, 31, 33, 48, 49, 257};
    c.type = type;
    c.weightGradient = gradient;
    c.transposed = transposed;
    c.groups = pick(1, 5);
    c.k = gen() % 4 ? pick(1, 70) : pick(500, 1100);
    c.m = gen() % 4 ? pick(1, 140) : pick(250, 300);
    offsets.push_back(0);
    for (int64_t i = 0; i < c.groups; ++i)
      offsets.push_back(offsets.back() + counts[gen() % 12]);
    c.rows = offsets.back() + pick(0, 3);
    c.lda = c.k;
    c.ldb = gradient || !transposed ? c.m : c.k;
    c.groupStrideB = c.k * c.m;
    std::normal_distribution<float> normal;
    for (auto [values, size] :
         {std::pair(&a, c.rows * c.k),
          {&b, (gradient ? c.rows : c.groups * c.k) * c.m}})
      for (int64_t i = 0; i < size; ++i) {
        float x = normal(gen);
        if (type == DType::BF16)
          x = widen(uint16_t(std::bit_cast<uint32_t>(x) >> 16));
        values->push_back(x);
      }
  }

  std::vector<float> run(int threads) const {
    std::vector<uint16_t> narrow[2];
    for (auto [to, from] : {std::pair(&narrow[0], &a), {&narrow[1], &b}})
      for (float x : *from)
        to->push_back(uint16_t(std::bit_cast<uint32_t>(x) >> 16));
    bool wide = c.type == DType::F32;
    std::vector<int64_t> scratch(c.groups + 1);
    std::vector<float> out((c.weightGradient ? c.groups * c.k : c.rows) * c.m,
                           NAN);
    const void *left = wide ? static_cast<const void *>(a.data())
                            : narrow[0].data(),
               *right = wide ? static_cast<const void *>(b.data())
                             : narrow[1].data();
    ThreadTeam team(threads);
    ThreadTeam::Adopted adopted = team.adopt();
    groupedContract(c,
                    {static_cast<const char *>(left),
                     static_cast<const char *>(right), offsets.data(),
                     reinterpret_cast<char *>(out.data()), scratch.data()},
                    team);
    return out;
  }

  /// In f64, and the sums of the sizes of terms.
  void expect(std::vector<double> &sums, std::vector<double> &sizes) const {
    sums.assign((c.weightGradient ? c.groups * c.k : c.rows) * c.m, 0);
    sizes = sums;
    for (int64_t group = 0; group < c.groups; ++group)
      for (int64_t row = offsets[group]; row < offsets[group + 1]; ++row)
        for (int64_t k = 0; k < c.k; ++k)
          for (int64_t m = 0; m < c.m; ++m) {
            int64_t inner = c.transposed ? m * c.k + k : k * c.m + m,
                    weight = group * c.k * c.m + inner,
                    to = c.weightGradient ? weight : row * c.m + m;
            double x = double(a[row * c.k + k]) *
                       b[c.weightGradient ? row * c.m + m : weight];
            sums[to] += x;
            sizes[to] += std::abs(x);
          }
  }
};

TEST(Grouped, IsThatOfALoop) {
  std::mt19937 gen(3);
  for (int i = 0; i < 48; ++i) {
    SCOPED_TRACE(i);
    Trial trial(gen, i % 2 ? DType::BF16 : DType::F32, i / 2 % 2, i / 4 % 2);
    std::vector<double> sums, sizes;
    trial.expect(sums, sizes);
    std::vector<float> out = trial.run(2);
    for (size_t j = 0; j < out.size(); ++j)
      ASSERT_NEAR(out[j], sums[j], 1e-6 * sizes[j] + 1e-7) << j;
  }
}

TEST(Grouped, DoesNotDependOnThreads) {
  std::mt19937 gen(4);
  for (int i = 0; i < 24; ++i) {
    SCOPED_TRACE(i);
    Trial trial(gen, i % 2 ? DType::BF16 : DType::F32, i / 2 % 2, i / 4 % 2);
    std::vector<float> one = trial.run(1);
    for (int threads : {2, 3, 7})
      EXPECT_EQ(trial.run(threads), one);
  }
}

TEST(Grouped, SortsStably) {
  std::mt19937 gen(5);
  for (int i = 0; i < 30; ++i) {
    int64_t rows = int64_t(gen() % 500), size = 1 + int64_t(gen() % 40),
            origin = int64_t(gen() % 3);
    std::vector<int64_t> groups(rows), order(rows), inverse(rows),
        offsets(size + 1), expected(rows);
    for (int64_t row = 0; row < rows; ++row) {
      groups[row] = int64_t(gen() % uint64_t(size + 4));
      expected[row] = row;
    }
    SortRowsCommand c;
    c.rows = rows;
    c.size = size;
    sortRows(c, {groups.data(), &origin, order.data(), inverse.data(),
                 offsets.data()});
    auto key = [&](int64_t row) {
      int64_t group = groups[row] - origin;
      return group < 0 || group >= size ? size : group;
    };
    std::stable_sort(expected.begin(), expected.end(),
                     [&](int64_t a, int64_t b) { return key(a) < key(b); });
    EXPECT_EQ(order, expected);
    for (int64_t place = 0; place < rows; ++place) {
      EXPECT_EQ(inverse[order[place]], place);
      int64_t group = key(order[place]);
      EXPECT_GE(place, offsets[group]);
      if (group < size) {
        EXPECT_LT(place, offsets[group + 1]);
      }
    }
  }
}

} // namespace
