//===- Grouped.cpp - Products of rows sorted by group ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/CPU/Grouped.h"
#include "GroupedBF16.h"
#include "GroupedF32.h"
#include "cleave/Runtime/CPU/Contraction.h"

#include <algorithm>
#include <cstring>

using namespace cleave;
using namespace cleave::runtime;

//===----------------------------------------------------------------------===//
// Order
//===----------------------------------------------------------------------===//

template <typename T>
static void sortRowsOf(const SortRowsCommand &c, const SortRowsPointers &p) {
  const T *groups = static_cast<const T *>(p.groups);
  int64_t origin = p.origin ? *p.origin : 0;
  auto groupOf = [&](int64_t row) {
    int64_t group = static_cast<int64_t>(groups[row]) - origin;
    return group < 0 || group >= c.size ? c.size : group;
  };
  // Each row's place in its group, and the sizes of groups behind their bounds.
  std::fill_n(p.offsets, c.size + 1, 0);
  int64_t others = 0;
  for (int64_t row = 0; row < c.rows; ++row) {
    int64_t group = groupOf(row);
    p.inverse[row] = group == c.size ? others++ : p.offsets[group + 1]++;
  }
  for (int64_t group = 0; group < c.size; ++group)
    p.offsets[group + 1] += p.offsets[group];
  for (int64_t row = 0; row < c.rows; ++row) {
    p.inverse[row] += p.offsets[groupOf(row)];
    p.order[p.inverse[row]] = row;
  }
}

void cleave::runtime::sortRows(const SortRowsCommand &c,
                               const SortRowsPointers &p) {
  if (c.groupType == DType::I64)
    sortRowsOf<int64_t>(c, p);
  else if (c.groupType == DType::I32)
    sortRowsOf<int32_t>(c, p);
  else
    sortRowsOf<int8_t>(c, p);
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

/// Tiles of the work that threads share: rows and columns of a group's result,
/// and, of a gradient of weights, rows and columns of the matrix.
static constexpr int64_t kTileRows = 256, kTileColumns = 256, kTileDepth = 512;

static_assert(kFewRowsDepth == kContractionDepth);
static_assert(kFewRowsF32Depth == kContractionDepth);

static int64_t divideUp(int64_t n, int64_t by) { return (n + by - 1) / by; }

namespace {

/// A row-major matrix, or its transpose.
template <typename T> struct Matrix {
  const T *data;
  int64_t ld;
  bool transposed;

  const T *at(int64_t row, int64_t column) const {
    return data + (transposed ? column * ld + row : row * ld + column);
  }
};

} // namespace

/// C [m, n] += A [m, k] B [k, n]; C is not read if `first`.
template <typename T>
static void multiply(int64_t m, int64_t n, int64_t k, Matrix<T> a, Matrix<T> b,
                     bool first, float *c, int64_t ldc) {
  float beta = first ? 0.0f : 1.0f;
  if constexpr (std::is_same_v<T, float>) {
    if (first && hasFewRowsF32() && k > 0) {
      if (!a.transposed && m <= kFewRowsF32)
        return fewRowsF32(m, n, k, a.data, a.ld, b.data, b.ld, b.transposed, c,
                          ldc);
      if (a.transposed && !b.transposed && k <= kFewRowsWeightF32)
        return fewRowsWeightF32(k, m, n, a.data, a.ld, b.data, b.ld, c, ldc);
    }
    sgemm(a.transposed, b.transposed, m, n, k, 1.0f, a.data, a.ld, b.data, b.ld,
          beta, c, ldc);
  } else {
    if (first && hasFewRowsBF16() && k > 0) {
      if (!a.transposed && m <= kFewRows)
        return fewRowsBF16(m, n, k, a.data, a.ld, b.data, b.ld, b.transposed, c,
                           ldc);
      if (a.transposed && !b.transposed && k <= kFewRows)
        return fewRowsWeightBF16(k, m, n, a.data, a.ld, b.data, b.ld, c, ldc);
    }
    gemmOfBF16(a.transposed, b.transposed, m, n, k, 1.0f, a.data, a.ld, b.data,
               b.ld, beta, c, ldc);
  }
}

/// In f64 the library has none: sums in the order of k.
static void multiply(int64_t m, int64_t n, int64_t k, Matrix<double> a,
                     Matrix<double> b, bool first, double *c, int64_t ldc) {
  for (int64_t i = 0; i < m; ++i) {
    double *row = c + i * ldc;
    if (first)
      std::fill_n(row, n, 0.0);
    for (int64_t l = 0; l < k; ++l) {
      double x = *a.at(i, l);
      for (int64_t j = 0; j < n; ++j)
        row[j] += x * *b.at(l, j);
    }
  }
}

namespace {

template <typename T, typename Sum> class Grouped {
public:
  Grouped(const GroupedContractCommand &c, const GroupedPointers &p)
      : c(c), offsets(p.offsets), tilesBefore(p.scratch),
        a(reinterpret_cast<const T *>(p.a)),
        b(reinterpret_cast<const T *>(p.b)),
        out(reinterpret_cast<Sum *>(p.out)) {}

  void rows(const ThreadTeam &team) {
    clearOthers();
    if (c.m == 0)
      return;
    int64_t ranges = c.ranges * c.groups, columns = divideUp(c.m, kTileColumns);
    tilesBefore[0] = 0;
    for (int64_t i = 0; i < ranges; ++i) {
      auto [begin, end] = range(i / c.groups, i % c.groups);
      tilesBefore[i + 1] = tilesBefore[i] + divideUp(end - begin, kTileRows);
    }
    team.parallelEach(tilesBefore[ranges] * columns, [&](int, int64_t item) {
      rowsTile(item / columns, item % columns * kTileColumns);
    });
  }

  void weights(const ThreadTeam &team) {
    if (c.k == 0 || c.m == 0)
      return;
    int64_t columns = divideUp(c.m, kTileColumns),
            depths = divideUp(c.k, kTileDepth);
    team.parallelEach(c.groups * depths * columns, [&](int, int64_t item) {
      weightsTile(item / (depths * columns),
                  item / columns % depths * kTileDepth,
                  item % columns * kTileColumns);
    });
  }

private:
  std::pair<int64_t, int64_t> range(int64_t i, int64_t group) const {
    const int64_t *at = offsets + i * (c.groups + 1) + group;
    return {at[0], at[1]};
  }

  /// Rows in no range are 0. A range of all groups has no gaps.
  void clearOthers() {
    for (int64_t row = 0; row < c.rows;) {
      int64_t next = c.rows, end = c.rows;
      for (int64_t i = 0; i < c.ranges; ++i) {
        int64_t begin = range(i, 0).first, last = range(i, c.groups - 1).second;
        if (begin < last && begin >= row && begin < next)
          next = begin, end = last;
      }
      std::fill_n(out + row * c.m, (next - row) * c.m, Sum(0));
      row = end;
    }
  }

  void rowsTile(int64_t tile, int64_t column) const {
    int64_t at = std::upper_bound(tilesBefore,
                                  tilesBefore + c.ranges * c.groups + 1, tile) -
                 tilesBefore - 1;
    int64_t group = at % c.groups;
    auto [begin, end] = range(at / c.groups, group);
    int64_t first = begin + (tile - tilesBefore[at]) * kTileRows,
            rows = std::min(kTileRows, end - first),
            columns = std::min(kTileColumns, c.m - column);
    Matrix<T> weight{b + group * c.groupStrideB, c.ldb, c.transposed};
    Sum *to = out + first * c.m + column;
    multiply(rows, columns, c.k, Matrix<T>{a + first * c.lda, c.lda, false},
             Matrix<T>{weight.at(0, column), c.ldb, c.transposed},
             /*first=*/true, to, c.m);
  }

  void weightsTile(int64_t group, int64_t depth, int64_t column) const {
    int64_t depths = std::min(kTileDepth, c.k - depth),
            columns = std::min(kTileColumns, c.m - column);
    Sum *to = out + group * c.k * c.m +
              (c.transposed ? column * c.k + depth : depth * c.m + column);
    int64_t ld = c.transposed ? c.k : c.m;
    bool first = true;
    for (int64_t i = 0; i < c.ranges; ++i) {
      auto [begin, end] = range(i, group);
      if (begin == end && (!first || i + 1 < c.ranges))
        continue;
      Matrix<T> rows{a + begin * c.lda + depth, c.lda, true},
          grads{b + begin * c.ldb + column, c.ldb, false};
      // Of no rows the sum is 0.
      if (c.transposed)
        multiply(columns, depths, end - begin,
                 Matrix<T>{grads.data, c.ldb, true},
                 Matrix<T>{rows.data, c.lda, false}, first, to, ld);
      else
        multiply(depths, columns, end - begin, rows, grads, first, to, ld);
      first = false;
    }
  }

  const GroupedContractCommand &c;
  const int64_t *offsets;
  int64_t *tilesBefore;
  const T *a, *b;
  Sum *out;
};

template <typename T, typename Sum>
void run(const GroupedContractCommand &c, const GroupedPointers &p,
         const ThreadTeam &team) {
  Grouped<T, Sum> grouped(c, p);
  if (c.weightGradient)
    grouped.weights(team);
  else
    grouped.rows(team);
}

} // namespace

void cleave::runtime::groupedContract(const GroupedContractCommand &c,
                                      const GroupedPointers &p,
                                      const ThreadTeam &team) {
  if (c.type == DType::F64)
    run<double, double>(c, p, team);
  else if (c.type == DType::BF16)
    run<uint16_t, float>(c, p, team);
  else
    run<float, float>(c, p, team);
}
