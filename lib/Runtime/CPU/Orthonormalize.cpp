//===- Orthonormalize.cpp - Orthonormal columns ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/CPU/Orthonormalize.h"
#include "cleave/Support/OrthonormalScratch.h"

#include <cmath>

using namespace cleave;
using namespace cleave::runtime;

/// A dot product of `n` elements, a multiple of 8, in as many lanes.
static double dot(const double *x, const double *y, int64_t n) {
  double lanes[8] = {};
  for (int64_t i = 0; i < n; i += 8)
    for (int64_t lane = 0; lane < 8; ++lane)
      lanes[lane] += x[i + lane] * y[i + lane];
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

namespace {

/// One matrix. After pass j, row j of the pivots holds what its reflection is:
/// the factor of v at column j, and those of v in later columns.
class Columns {
public:
  Columns(const OrthonormalScratch &place, int64_t rows, int64_t columns,
          double *scratch)
      : place(place), rows(rows), columns(columns), scratch(scratch) {}

  void load(int64_t block, const float *in);
  void reflect(int64_t j);
  void update(int64_t block, int64_t j);
  void finish();
  void form(int64_t block, float *out);

private:
  double *column(int64_t block, int64_t c) {
    return scratch + place.matrix + (block * columns + c) * place.blockRows;
  }
  double &at(int64_t row, int64_t c) {
    return column(row / place.blockRows, c)[row % place.blockRows];
  }
  double &of(int64_t matrix, int64_t row, int64_t c) {
    return scratch[matrix + row * columns + c];
  }
  bool has(int64_t block, int64_t row) const {
    return row / place.blockRows == block;
  }
  /// Over all blocks.
  double sum(int64_t sums, int64_t c) {
    double total = 0;
    for (int64_t block = 0; block < place.blocks; ++block)
      total += of(sums, block, c);
    return total;
  }
  void multiply(int64_t block, int64_t j);

  const OrthonormalScratch &place;
  int64_t rows, columns;
  double *scratch;
};

} // namespace

/// What pass j reads of a block.
void Columns::multiply(int64_t block, int64_t j) {
  for (int64_t c = 0; c < columns; ++c)
    of(place.sums[j % 2], block, c) =
        dot(column(block, j), column(block, c), place.blockRows);
  if (has(block, j))
    for (int64_t c = 0; c < columns; ++c)
      of(place.pivots, j, c) = at(j, c);
}

void Columns::load(int64_t block, const float *in) {
  int64_t first = block * place.blockRows;
  int64_t count = std::min(place.blockRows, rows - first);
  for (int64_t c = 0; c < columns; ++c) {
    double *to = column(block, c);
    for (int64_t i = 0; i < count; ++i)
      to[i] = in[(first + i) * columns + c];
    std::fill(to + std::max<int64_t>(count, 0), to + place.blockRows, 0.0);
    of(place.norms, block, c) = dot(to, to, place.blockRows);
  }
  multiply(block, 0);
}

void Columns::reflect(int64_t j) {
  int64_t sums = place.sums[j % 2];
  double *pivot = &of(place.pivots, j, 0);
  constexpr double tolerance = OrthonormalScratch::kTolerance;
  double first = pivot[j], left = sum(sums, j);
  double &factor = scratch[place.factors + j], &sign = scratch[place.signs + j];
  bool reflects = left > tolerance * tolerance * sum(place.norms, j);
  double diagonal = first < 0 ? std::sqrt(left) : -std::sqrt(left);
  double scale = reflects ? 1 / (first - diagonal) : 0;
  factor = reflects ? 1 - first / diagonal : 0;
  sign = reflects && diagonal < 0 ? -1 : 1;
  for (int64_t c = 0; c < columns; ++c) {
    if (c == j)
      continue;
    double product =
        reflects ? (sum(sums, c) - diagonal * pivot[c]) * scale : 0;
    if (c < j)
      of(place.gram, c, j) = product;
    else
      pivot[c] = factor * product;
  }
  pivot[j] = scale;
}

void Columns::update(int64_t block, int64_t j) {
  const double *reflection = &of(place.pivots, j, 0);
  double *v = column(block, j);
  for (int64_t i = 0; i < place.blockRows; ++i)
    v[i] *= reflection[j];
  for (int64_t c = j + 1; c < columns; ++c) {
    double *x = column(block, c);
    for (int64_t i = 0; i < place.blockRows; ++i)
      x[i] -= reflection[c] * v[i];
  }
  if (has(block, j)) {
    at(j, j) = reflection[j] != 0;
    for (int64_t c = j + 1; c < columns; ++c)
      at(j, c) = 0;
  }
  if (j + 1 < columns)
    multiply(block, j + 1);
}

void Columns::finish() {
  bool finite = true;
  for (int64_t c = 0; c < columns; ++c)
    finite &= std::isfinite(sum(place.norms, c));
  for (int64_t j = 0; j < columns; ++j) {
    double factor = scratch[place.factors + j];
    if (!finite)
      scratch[place.signs + j] = std::nan("");
    for (int64_t k = 0; k < j; ++k) {
      double product = 0;
      for (int64_t m = k; m < j; ++m)
        product += of(place.triangle, k, m) * of(place.gram, m, j);
      of(place.triangle, k, j) = -factor * product;
    }
    of(place.triangle, j, j) = factor;
    for (int64_t k = 0; k <= j; ++k) {
      double product = 0;
      for (int64_t m = k; m <= j; ++m)
        product += of(place.triangle, k, m) * at(j, m);
      of(place.product, k, j) = product;
    }
  }
}

void Columns::form(int64_t block, float *out) {
  constexpr int64_t tile = OrthonormalScratch::kTile;
  for (int64_t begin = 0; begin < place.blockRows; begin += tile)
    for (int64_t c = 0; c < columns; ++c) {
      double sums[tile] = {};
      for (int64_t k = 0; k <= c; ++k) {
        const double *v = column(block, k) + begin;
        double factor = of(place.product, k, c);
        for (int64_t i = 0; i < tile; ++i)
          sums[i] += v[i] * factor;
      }
      double sign = scratch[place.signs + c];
      int64_t first = block * place.blockRows + begin;
      for (int64_t i = 0; i < std::min(tile, rows - first); ++i)
        out[(first + i) * columns + c] =
            static_cast<float>(sign * ((first + i == c) - sums[i]));
    }
}

void cleave::runtime::orthonormalize(const OrthonormalizeCommand &c,
                                     const float *in, float *out,
                                     double *scratch, const ThreadTeam &team) {
  if (c.columns == 0)
    return;
  OrthonormalScratch place(c.rows, c.columns);
  auto matrix = [&](int64_t index) {
    return Columns(place, c.rows, c.columns, scratch + index * place.size);
  };
  int64_t elements = c.rows * c.columns;
  auto blocks = [&](auto &&work) {
    team.parallelFor(
        c.batch * place.blocks,
        std::max<int64_t>(1, (1 << 14) / (place.blockRows * c.columns)),
        [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            int64_t index = i / place.blocks;
            Columns columns = matrix(index);
            work(columns, i % place.blocks, index * elements);
          }
        });
  };
  auto matrices = [&](auto &&work) {
    team.parallelFor(c.batch, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Columns columns = matrix(i);
        work(columns);
      }
    });
  };
  blocks([&](Columns &columns, int64_t block, int64_t first) {
    columns.load(block, in + first);
  });
  for (int64_t j = 0; j < c.columns; ++j) {
    matrices([&](Columns &columns) { columns.reflect(j); });
    blocks([&](Columns &columns, int64_t block, int64_t) {
      columns.update(block, j);
    });
  }
  matrices([](Columns &columns) { columns.finish(); });
  blocks([&](Columns &columns, int64_t block, int64_t first) {
    columns.form(block, out + first);
  });
}
