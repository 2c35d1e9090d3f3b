//===- OrthonormalizeTest.cpp - Tests of orthonormal columns --------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/CPU/Orthonormalize.h"
#include "cleave/Support/OrthonormalScratch.h"
#include "gtest/gtest.h"

#include <cmath>
#include <random>
#include <vector>

using namespace cleave;
using namespace cleave::runtime;

namespace {

std::vector<float> orthonormal(const OrthonormalizeCommand &c,
                               const std::vector<float> &in, int threads) {
  OrthonormalScratch place(c.rows, c.columns);
  // What scratch memory holds before does not matter.
  std::vector<double> scratch(place.bytes(c.batch) / sizeof(double), NAN);
  std::vector<float> out(in.size(), NAN);
  orthonormalize(c, in.data(), out.data(), scratch.data(), ThreadTeam(threads));
  return out;
}

/// The element [i, j] of A^T B, in f64.
double product(const float *a, const float *b, const OrthonormalizeCommand &c,
               int64_t i, int64_t j) {
  double sum = 0;
  for (int64_t k = 0; k < c.rows; ++k)
    sum += double(a[k * c.columns + i]) * double(b[k * c.columns + j]);
  return sum;
}

/// Q is the one matrix with orthonormal columns for which Q^T A is a triangle
/// with a positive diagonal.
TEST(Orthonormalize, FactorsOfMatrices) {
  std::mt19937 gen(3);
  std::normal_distribution<float> normal;
  for (auto [batch, rows, columns] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
        {2, 7, 7},
        {1, 100, 1},
        {5, 33, 4},
        {1, 256, 3},
        {2, 257, 40},
        {1, 1000, 9},
        {1, 66000, 3}})
    for (float scale : {1.0f, 1e-30f, 1e30f}) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns));
      OrthonormalizeCommand c;
      c.batch = batch;
      c.rows = rows;
      c.columns = columns;
      std::vector<float> in(batch * rows * columns);
      for (float &x : in)
        x = scale * normal(gen);
      std::vector<float> out = orthonormal(c, in, 1);
      for (int64_t b = 0; b < batch; ++b) {
        const float *a = in.data() + b * rows * columns,
                    *q = out.data() + b * rows * columns;
        for (int64_t i = 0; i < columns; ++i)
          for (int64_t j = 0; j < columns; ++j) {
            ASSERT_NEAR(product(q, q, c, i, j), i == j, 3e-7);
            double r = product(q, a, c, i, j) / scale;
            if (i > j)
              ASSERT_NEAR(r, 0, 3e-7 * std::sqrt(double(rows)));
            if (i == j)
              ASSERT_GT(r, 0);
          }
      }
      if (scale == 1)
        ASSERT_EQ(orthonormal(c, in, 2), out);
      std::vector<double> scratch(
          OrthonormalScratch(rows, columns).bytes(batch) / sizeof(double));
      std::vector<float> same = in;
      orthonormalize(c, same.data(), same.data(), scratch.data(),
                     ThreadTeam(1));
      ASSERT_EQ(same, out);
    }
}

TEST(Orthonormalize, DependentColumns) {
  OrthonormalizeCommand c;
  c.batch = 2;
  c.rows = 4;
  c.columns = 3;
  // Zeros give unit vectors. Of [0, a, 2a], a = (3, 4, 0, 0), the first
  // reflection is the identity and the second that of a below row 0.
  std::vector<float> in(24, 0.0f), expected(24, 0.0f);
  for (int i = 0; i < 3; ++i)
    expected[i * 3 + i] = 1;
  float *a = in.data() + 12, *q = expected.data() + 12;
  a[0 * 3 + 1] = 3, a[1 * 3 + 1] = 4;
  a[0 * 3 + 2] = 6, a[1 * 3 + 2] = 8;
  q[0 * 3 + 0] = q[1 * 3 + 1] = q[2 * 3 + 2] = 1;
  EXPECT_EQ(orthonormal(c, in, 1), expected);
}

TEST(Orthonormalize, NotFinite) {
  OrthonormalizeCommand c;
  c.batch = 3;
  c.rows = 5;
  c.columns = 2;
  std::vector<float> in(30, 1.0f);
  in[9] = INFINITY;
  in[25] = NAN;
  std::vector<float> out = orthonormal(c, in, 1);
  for (int i = 0; i < 30; ++i)
    EXPECT_EQ(std::isnan(out[i]), i < 10 || i >= 20) << i;
}

} // namespace
