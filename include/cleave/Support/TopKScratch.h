//===- TopKScratch.h - Memory of a selection of elements --------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// How the k largest elements of each row are selected on any device. An
/// element's *key* is an integer of 32 bits in the order of the elements. Three
/// passes over a row count the 11, 11 and 10 bits of keys, from the highest on:
/// each finds the digit of the k-th largest key among those that agree with it
/// so far. A fourth counts, in each piece of the row, the elements above that
/// key and those equal to it, a fifth takes them in the order of their indices.
/// Only the k selected elements are then sorted, by keys and stably.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SUPPORT_TOPKSCRATCH_H
#define CLEAVE_SUPPORT_TOPKSCRATCH_H

#include <algorithm>
#include <cstdint>

namespace cleave {

/// Scratch memory of all rows; offsets and sizes are in bytes.
struct TopKScratch {
  static constexpr int64_t kBins = 2048, kPasses = 3;
  /// Longer rows are divided into chunks, and chunks into segments.
  static constexpr int64_t kShort = 1 << 15, kChunk = 1 << 14, kChunks = 512,
                           kSegments = 8;
  /// Keys of a block of the sort.
  static constexpr int64_t kSortKeys = 2048;

  TopKScratch(int64_t rows, int64_t columns, int64_t k) {
    isShort = columns <= kShort;
    int64_t wanted =
        isShort ? 1 : std::min(kChunks, (columns + kChunk - 1) / kChunk);
    // Segments begin at multiples of 32 elements.
    segment = ((columns + wanted - 1) / wanted + 32 * kSegments - 1) /
              (32 * kSegments) * 32;
    chunks = std::max<int64_t>(1, (columns + segment * kSegments - 1) /
                                      (segment * kSegments));
    auto place = [&](int64_t numbers) {
      int64_t at = bytes;
      bytes += (numbers * 4 + 255) / 256 * 256;
      return at;
    };
    int64_t longRows = isShort ? 0 : rows, selected = rows * k;
    histograms = place(longRows * kPasses * kBins);
    totals = place(longRows * chunks * 2);
    counts = place(longRows * chunks * kSegments * 2);
    for (int i = 0; i < 2; ++i) {
      keys[i] = place(selected);
      places[i] = place(selected);
    }
    chosen = place(selected);
    sortBlocks = (selected + kSortKeys - 1) / kSortKeys;
    sortCounts = place(256 * sortBlocks);
    sortStarts = place(256);
  }

  bool isShort;
  /// Elements of a segment, and chunks of a row.
  int64_t segment, chunks;
  /// Of a long row [pass, bin]; [chunk, above or equal]; [chunk, segment, above
  /// or equal].
  int64_t histograms, totals, counts;
  /// Of the selected elements: keys in reverse order, with places among the
  /// selected, before and after a pass of the sort; and indices in the row.
  int64_t keys[2], places[2], chosen;
  /// Of the sort on a GPU.
  int64_t sortBlocks, sortCounts, sortStarts;
  int64_t bytes = 0;
};

} // namespace cleave

#endif // CLEAVE_SUPPORT_TOPKSCRATCH_H
