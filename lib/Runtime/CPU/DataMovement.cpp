//===- DataMovement.cpp - Commands that move data -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/CPU/DataMovement.h"
#include "cleave/Runtime/Core/WordType.h"

#include <algorithm>
#include <cstring>

using namespace cleave::runtime;

//===----------------------------------------------------------------------===//
// Scatter-add
//===----------------------------------------------------------------------===//

template <typename Id>
static void scatterAddRange(const ScatterAddCommand &c, const float *rows,
                            const Id *ids, float *out, int64_t row0,
                            int64_t row1, int64_t col0, int64_t col1) {
  for (int64_t i = 0; i < c.count; ++i) {
    int64_t id = ids[i];
    if (id < row0 || id >= row1 || (c.hasSkip && id == c.skipIndex))
      continue;
    float *to = out + id * c.columns;
    const float *from = rows + i * c.columns;
    for (int64_t j = col0; j < col1; ++j)
      to[j] += from[j];
  }
}

void cleave::runtime::scatterAdd(const ScatterAddCommand &c, const float *rows,
                                 const void *ids, float *out,
                                 const ThreadTeam &team) {
  auto work = [&](int64_t row0, int64_t row1, int64_t col0, int64_t col1) {
    if (!c.accumulate)
      for (int64_t r = row0; r < row1; ++r)
        std::fill(out + r * c.columns + col0, out + r * c.columns + col1, 0.0f);
    if (c.idType == DType::I64)
      scatterAddRange(c, rows, static_cast<const int64_t *>(ids), out, row0,
                      row1, col0, col1);
    else
      scatterAddRange(c, rows, static_cast<const int32_t *>(ids), out, row0,
                      row1, col0, col1);
  };
  // Splitting by columns is even however often an id occurs; narrow rows are
  // split by id instead.
  constexpr int64_t line = 16;
  if (c.columns >= 2 * line * team.size())
    team.parallelFor(
        c.columns, 2 * line,
        [&](int64_t begin, int64_t end) { work(0, c.outRows, begin, end); },
        line);
  else
    team.parallelFor(c.outRows, 64, [&](int64_t begin, int64_t end) {
      work(begin, end, 0, c.columns);
    });
}

//===----------------------------------------------------------------------===//
// Copy
//===----------------------------------------------------------------------===//

StridedCopy::StridedCopy(const CopyCommand &c) : elementBytes(c.elementBytes) {
  for (size_t i = 0; i < c.sizes.size(); ++i) {
    empty |= c.sizes[i] == 0;
    if (c.sizes[i] > 1)
      dims[rank++] = {c.sizes[i], c.srcStrides[i], c.dstStrides[i]};
  }
  if (empty)
    return;
  // Writes are in order: the destination's smallest stride is innermost.
  for (int i = 1; i < rank; ++i)
    for (int j = i; j > 0 && dims[j - 1].dst < dims[j].dst; --j)
      std::swap(dims[j - 1], dims[j]);
  // Merges dimensions that are contiguous in both tensors.
  int kept = 0;
  for (int i = 1; i < rank; ++i) {
    Dim &outer = dims[kept];
    const Dim &inner = dims[i];
    if (outer.src == inner.src * inner.size &&
        outer.dst == inner.dst * inner.size)
      outer = {outer.size * inner.size, inner.src, inner.dst};
    else
      dims[++kept] = inner;
  }
  rank = rank ? kept + 1 : 0;
  if (rank == 0)
    dims[rank++] = {1, 1, 1};
  // A transposition reads along the second innermost loop, in tiles.
  if (rank >= 3 && dims[rank - 1].src != 1)
    for (int i = 0; i < rank - 2; ++i)
      if (dims[i].src == 1)
        std::rotate(dims + i, dims + i + 1, dims + rank - 1);
  if (rank == 1) {
    dims[1] = dims[0];
    dims[0] = {1, 0, 0};
    rank = 2;
  }
}

template <typename T>
static void copyTile(const T *src, T *dst, int64_t rows, int64_t srcRow,
                     int64_t dstRow, int64_t cols, int64_t srcCol,
                     int64_t dstCol) {
  constexpr int64_t tile = 16;
  if (dstCol == 1 && srcCol == 1) {
    for (int64_t i = 0; i < rows; ++i)
      std::memcpy(dst + i * dstRow, src + i * srcRow,
                  static_cast<size_t>(cols) * sizeof(T));
    return;
  }
  if (srcCol == 0 || srcRow != 1) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j)
        dst[i * dstRow + j * dstCol] = src[i * srcRow + j * srcCol];
    return;
  }
  for (int64_t i0 = 0; i0 < rows; i0 += tile)
    for (int64_t j0 = 0; j0 < cols; j0 += tile) {
      int64_t i1 = std::min(rows, i0 + tile), j1 = std::min(cols, j0 + tile);
      for (int64_t i = i0; i < i1; ++i)
        for (int64_t j = j0; j < j1; ++j)
          dst[i * dstRow + j * dstCol] = src[i * srcRow + j * srcCol];
    }
}

void StridedCopy::execute(const char *src, char *dst,
                          const ThreadTeam &team) const {
  if (empty)
    return;
  // The two innermost dimensions are one tile; if there are no others, rows of
  // the tile are divided among the threads.
  const Dim &rowDim = dims[rank - 2], &colDim = dims[rank - 1];
  int64_t outer = 1;
  for (int d = 0; d < rank - 2; ++d)
    outer *= dims[d].size;
  int64_t cols = colDim.size, pieces = 1;
  int64_t columnsPerPiece = cols;
  int64_t rows = rowDim.size, rowsPerPiece = rows;
  // Split so that each piece moves about 64 KiB.
  int64_t pieceElements = std::max<int64_t>(1, (1 << 16) / elementBytes);
  if (rows * cols > pieceElements) {
    if (rows > 1) {
      rowsPerPiece = std::clamp<int64_t>(pieceElements / cols / 16 * 16,
                                         std::min<int64_t>(rows, 16), rows);
      pieces = (rows + rowsPerPiece - 1) / rowsPerPiece;
    } else {
      columnsPerPiece = pieceElements;
      pieces = (cols + columnsPerPiece - 1) / columnsPerPiece;
    }
  }
  auto one = [&](int64_t item) {
    int64_t piece = item % pieces, index = item / pieces;
    int64_t srcAt = 0, dstAt = 0;
    for (int d = rank - 3; d >= 0; --d) {
      int64_t i = index % dims[d].size;
      index /= dims[d].size;
      srcAt += i * dims[d].src;
      dstAt += i * dims[d].dst;
    }
    int64_t rowCount = rows, colCount = cols;
    if (rows > 1) {
      int64_t first = piece * rowsPerPiece;
      rowCount = std::min(rowsPerPiece, rows - first);
      srcAt += first * rowDim.src;
      dstAt += first * rowDim.dst;
    } else {
      int64_t first = piece * columnsPerPiece;
      colCount = std::min(columnsPerPiece, cols - first);
      srcAt += first * colDim.src;
      dstAt += first * colDim.dst;
    }
    withWordType(elementBytes, [&](auto *type) {
      using T = std::remove_pointer_t<decltype(type)>;
      copyTile(reinterpret_cast<const T *>(src) + srcAt,
               reinterpret_cast<T *>(dst) + dstAt, rowCount, rowDim.src,
               rowDim.dst, colCount, colDim.src, colDim.dst);
    });
  };
  int64_t perItem = std::max<int64_t>(1, rows * cols / pieces);
  team.parallelFor(outer * pieces,
                   std::max<int64_t>(1, pieceElements / 2 / perItem),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i)
                       one(i);
                   });
}

//===----------------------------------------------------------------------===//
// Fill
//===----------------------------------------------------------------------===//

template <typename T>
static void fillWith(char *dst, int64_t bytes, uint64_t pattern) {
  T value = static_cast<T>(pattern);
  std::fill_n(reinterpret_cast<T *>(dst), bytes / int64_t(sizeof(T)), value);
}

void cleave::runtime::fill(const FillCommand &c, char *dst,
                           const ThreadTeam &team) {
  team.parallelFor(
      c.bytes, 1 << 16,
      [&](int64_t begin, int64_t end) {
        char *at = dst + begin;
        switch (c.elementBytes) {
        case 1:
          return fillWith<uint8_t>(at, end - begin, c.pattern);
        case 2:
          return fillWith<uint16_t>(at, end - begin, c.pattern);
        case 4:
          return fillWith<uint32_t>(at, end - begin, c.pattern);
        default:
          return fillWith<uint64_t>(at, end - begin, c.pattern);
        }
      },
      64);
}
