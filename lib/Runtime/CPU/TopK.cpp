//===- TopK.cpp - The largest elements of rows ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/CPU/TopK.h"
#include "cleave/Support/TopKScratch.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

using namespace cleave;
using namespace cleave::runtime;

/// In the order of the elements. Both zeros are equal.
static uint32_t keyOf(float x) {
  auto bits = std::bit_cast<uint32_t>(x);
  if (x == 0)
    bits = 0;
  if (x != x)
    bits = 0x7f800000;
  return bits >> 31 ? ~bits : bits | 0x80000000;
}

/// The lowest bit that pass `pass` counts.
static int shiftOf(int pass) { return pass == 0 ? 21 : pass == 1 ? 10 : 0; }
static uint32_t digitOf(uint32_t key, int pass) {
  return key >> shiftOf(pass) & (pass == 2 ? 1023 : 2047);
}

namespace {

/// A histogram of one pass.
using Bins = uint32_t[TopKScratch::kBins];

/// What is known of the k-th largest key after some passes: its highest bits,
/// and how many elements that have these are selected.
struct Selection {
  uint32_t key = 0;
  int64_t left;

  void narrow(const uint32_t *bins, int pass) {
    int64_t digit = TopKScratch::kBins - 1;
    for (; bins[digit] < left; --digit)
      left -= bins[digit];
    key |= static_cast<uint32_t>(digit) << shiftOf(pass);
  }
};

struct Counts {
  int64_t above = 0, equal = 0;
};

/// Where a row's selected elements are collected: keys in reverse order, and
/// indices.
struct Selected {
  uint32_t *keys, *indices;
};

} // namespace

/// Counts the digits of keys that begin as `key` does.
static void count(const float *row, int64_t begin, int64_t end, int pass,
                  uint32_t key, uint32_t *bins) {
  if (pass == 0) {
    for (int64_t i = begin; i < end; ++i)
      ++bins[digitOf(keyOf(row[i]), 0)];
    return;
  }
  int above = shiftOf(pass - 1);
  for (int64_t i = begin; i < end; ++i)
    if (uint32_t own = keyOf(row[i]); own >> above == key >> above)
      ++bins[digitOf(own, pass)];
}

static Counts countOf(const float *row, int64_t begin, int64_t end,
                      uint32_t key) {
  Counts counts;
  for (int64_t i = begin; i < end; ++i) {
    uint32_t own = keyOf(row[i]);
    counts.above += own > key;
    counts.equal += own == key;
  }
  return counts;
}

/// Takes the elements of a piece of a row, in order; `before` are those of the
/// pieces before it.
static void collect(const float *row, int64_t begin, int64_t end,
                    const Selection &selection, Counts before, Selected to) {
  for (int64_t i = begin; i < end; ++i) {
    uint32_t own = keyOf(row[i]);
    if (own < selection.key)
      continue;
    int64_t at = before.above + std::min(before.equal, selection.left);
    bool equal = own == selection.key;
    if (!equal || before.equal < selection.left) {
      to.keys[at] = ~own;
      to.indices[at] = static_cast<uint32_t>(i);
    }
    (equal ? before.equal : before.above) += 1;
  }
}

/// A key in reverse order, and an index: sorted, as pairs are.
static uint64_t pairOf(uint32_t key, uint32_t index) {
  return uint64_t(key) << 32 | index;
}

/// Sorts by keys; `now` is in the order of indices. Returns where the result
/// is.
static Selected sort(Selected now, Selected other, int64_t n) {
  constexpr int64_t few = 1024;
  if (n <= few) {
    uint64_t pairs[few];
    for (int64_t i = 0; i < n; ++i)
      pairs[i] = pairOf(now.keys[i], now.indices[i]);
    std::sort(pairs, pairs + n);
    for (int64_t i = 0; i < n; ++i)
      now.indices[i] = static_cast<uint32_t>(pairs[i]);
    return now;
  }
  for (int pass = 2; pass >= 0; --pass) {
    Bins starts = {};
    for (int64_t i = 0; i < n; ++i)
      ++starts[digitOf(now.keys[i], pass)];
    uint32_t sum = 0;
    for (uint32_t &start : starts)
      sum += std::exchange(start, sum);
    for (int64_t i = 0; i < n; ++i) {
      uint32_t to = starts[digitOf(now.keys[i], pass)]++;
      other.keys[to] = now.keys[i];
      other.indices[to] = now.indices[i];
    }
    std::swap(now, other);
  }
  return now;
}

/// A row that is sorted as a whole is cheaper than histograms.
static constexpr int64_t kSorted = 4096;

static void selectShort(const float *row, const TopKCommand &c, Selected to) {
  if (c.columns <= kSorted) {
    uint64_t pairs[kSorted];
    for (int64_t i = 0; i < c.columns; ++i)
      pairs[i] = pairOf(~keyOf(row[i]), static_cast<uint32_t>(i));
    if (c.k < c.columns)
      std::nth_element(pairs, pairs + c.k, pairs + c.columns);
    std::sort(pairs, pairs + c.k);
    for (int64_t i = 0; i < c.k; ++i) {
      to.keys[i] = static_cast<uint32_t>(pairs[i] >> 32);
      to.indices[i] = static_cast<uint32_t>(pairs[i]);
    }
    return;
  }
  Selection selection{0, c.k};
  for (int pass = 0; pass < TopKScratch::kPasses; ++pass) {
    Bins bins = {};
    count(row, 0, c.columns, pass, selection.key, bins);
    selection.narrow(bins, pass);
  }
  collect(row, 0, c.columns, selection, {}, to);
}

namespace {

/// Selects from long rows, of which threads have chunks.
class LongRows {
public:
  LongRows(const TopKCommand &c, const TopKScratch &place, const float *in,
           char *scratch)
      : c(c), place(place), in(in),
        histograms(reinterpret_cast<uint32_t *>(scratch + place.histograms)),
        totals(reinterpret_cast<uint32_t *>(scratch + place.totals)) {}

  void clear() {
    std::fill_n(histograms, c.rows * TopKScratch::kPasses * TopKScratch::kBins,
                0u);
  }

  void countDigits(int64_t row, int64_t chunk, int pass) {
    auto [begin, end] = rangeOf(chunk);
    Bins bins = {};
    count(in + row * c.columns, begin, end, pass, after(row, pass).key, bins);
    uint32_t *all = binsOf(row, pass);
    for (int64_t i = 0; i < TopKScratch::kBins; ++i)
      if (bins[i])
        std::atomic_ref(all[i]).fetch_add(bins[i], std::memory_order_relaxed);
  }

  void countSelected(int64_t row, int64_t chunk) {
    auto [begin, end] = rangeOf(chunk);
    Counts counts = countOf(in + row * c.columns, begin, end,
                            after(row, TopKScratch::kPasses).key);
    uint32_t *own = totals + (row * place.chunks + chunk) * 2;
    own[0] = static_cast<uint32_t>(counts.above);
    own[1] = static_cast<uint32_t>(counts.equal);
  }

  void collectChunk(int64_t row, int64_t chunk, Selected to) {
    auto [begin, end] = rangeOf(chunk);
    Counts before;
    for (int64_t i = 0; i < chunk; ++i) {
      const uint32_t *other = totals + (row * place.chunks + i) * 2;
      before.above += other[0];
      before.equal += other[1];
    }
    collect(in + row * c.columns, begin, end, after(row, TopKScratch::kPasses),
            before, to);
  }

private:
  uint32_t *binsOf(int64_t row, int pass) {
    return histograms +
           (row * TopKScratch::kPasses + pass) * TopKScratch::kBins;
  }
  Selection after(int64_t row, int passes) {
    Selection selection{0, c.k};
    for (int pass = 0; pass < passes; ++pass)
      selection.narrow(binsOf(row, pass), pass);
    return selection;
  }
  std::pair<int64_t, int64_t> rangeOf(int64_t chunk) const {
    int64_t size = place.segment * TopKScratch::kSegments;
    return {chunk * size, std::min(c.columns, (chunk + 1) * size)};
  }

  const TopKCommand &c;
  const TopKScratch &place;
  const float *in;
  uint32_t *histograms, *totals;
};

} // namespace

void cleave::runtime::topK(const TopKCommand &c, const float *in, float *values,
                           int64_t *indices, char *scratch,
                           const ThreadTeam &team) {
  TopKScratch place(c.rows, c.columns, c.k);
  auto selectedOf = [&](int64_t row, int side) {
    auto at = [&](int64_t offset) {
      return reinterpret_cast<uint32_t *>(scratch + offset) + row * c.k;
    };
    return Selected{at(place.keys[side]), at(place.places[side])};
  };
  if (!place.isShort) {
    LongRows rows(c, place, in, scratch);
    auto chunks = [&](auto &&work) {
      team.parallelFor(c.rows * place.chunks, 1,
                       [&](int64_t begin, int64_t end) {
                         for (int64_t i = begin; i < end; ++i)
                           work(i / place.chunks, i % place.chunks);
                       });
    };
    rows.clear();
    for (int pass = 0; pass < TopKScratch::kPasses; ++pass)
      chunks([&](int64_t row, int64_t chunk) {
        rows.countDigits(row, chunk, pass);
      });
    chunks([&](int64_t row, int64_t chunk) { rows.countSelected(row, chunk); });
    chunks([&](int64_t row, int64_t chunk) {
      rows.collectChunk(row, chunk, selectedOf(row, 0));
    });
  }
  team.parallelFor(c.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float *own = in + row * c.columns;
      Selected selected = selectedOf(row, 0);
      if (place.isShort)
        selectShort(own, c, selected);
      if (c.columns > kSorted)
        selected = sort(selected, selectedOf(row, 1), c.k);
      for (int64_t i = 0; i < c.k; ++i) {
        indices[row * c.k + i] = selected.indices[i];
        values[row * c.k + i] = own[selected.indices[i]];
      }
    }
  });
}
