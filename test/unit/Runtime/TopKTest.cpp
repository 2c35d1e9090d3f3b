//===- TopKTest.cpp - Tests of the largest elements -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/CPU/TopK.h"
#include "cleave/Support/TopKScratch.h"
#include "gtest/gtest.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

using namespace cleave;
using namespace cleave::runtime;

namespace {

/// Values of a row, by their bits, and indices: by a stable sort.
using Largest = std::pair<std::vector<uint32_t>, std::vector<int64_t>>;

Largest sorted(const TopKCommand &c, const std::vector<float> &in) {
  Largest result;
  std::vector<int64_t> order(c.columns);
  for (int64_t row = 0; row < c.rows; ++row) {
    const float *x = in.data() + row * c.columns;
    auto key = [&](int64_t i) { return std::isnan(x[i]) ? INFINITY : x[i]; };
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return key(a) > key(b); });
    for (int64_t i = 0; i < c.k; ++i) {
      result.first.push_back(std::bit_cast<uint32_t>(x[order[i]]));
      result.second.push_back(order[i]);
    }
  }
  return result;
}

Largest selected(const TopKCommand &c, const std::vector<float> &in,
                 int threads) {
  std::vector<char> scratch(TopKScratch(c.rows, c.columns, c.k).bytes, 0x5a);
  std::vector<float> values(c.rows * c.k);
  Largest result;
  result.second.resize(values.size());
  topK(c, in.data(), values.data(), result.second.data(), scratch.data(),
       ThreadTeam(threads));
  for (float value : values)
    result.first.push_back(std::bit_cast<uint32_t>(value));
  return result;
}

/// Few values give many ties, and edges are among them.
std::vector<float> draw(int64_t count, int kind, std::mt19937 &gen) {
  constexpr float edges[] = {NAN,    INFINITY, -INFINITY, 0.0f,   -0.0f,
                             1e-45f, -1e-45f,  3e38f,     -3e38f, 1.0f};
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float &x : values)
    x = kind == 0   ? normal(gen)
        : kind == 1 ? static_cast<float>(static_cast<int>(gen() % 7)) - 3
        : kind == 2 ? edges[gen() % 10]
                    : 0.5f;
  return values;
}

TEST(TopK, IsThatOfAStableSort) {
  std::mt19937 gen(1);
  for (auto [rows, columns] : {std::pair<int64_t, int64_t>{1, 1},
                               {3, 2},
                               {5, 300},
                               {2, 4096},
                               {2, 4097},
                               {3, 20000},
                               {1, TopKScratch::kShort},
                               {1, TopKScratch::kShort + 1},
                               {2, 100000}})
    for (int64_t k :
         {int64_t(1), columns / 100, columns / 3, columns - 1, columns})
      for (int kind = 0; kind < 4; ++kind) {
        if (k < 1)
          continue;
        SCOPED_TRACE(std::to_string(k) + " of " + std::to_string(columns));
        TopKCommand c;
        c.rows = rows;
        c.columns = columns;
        c.k = k;
        std::vector<float> in = draw(rows * columns, kind, gen);
        Largest expected = sorted(c, in);
        ASSERT_TRUE(selected(c, in, kind % 2 + 1) == expected) << kind;
      }
}

} // namespace
