//===- Packing.cpp - Intervals packed into one arena ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/Transforms/Memory/Packing.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/MathExtras.h"
#include <functional>
#include <limits>
#include <random>
#include <tuple>

using namespace cleave::exec;
using llvm::ArrayRef;

static int64_t rounded(const Interval &interval) {
  return llvm::alignTo(interval.bytes, kAlignment);
}

int64_t cleave::exec::maxLive(ArrayRef<Interval> intervals, int64_t *when) {
  // (time, change): an interval that ends at t is released at t + 1, before
  // those that begin there.
  std::vector<std::pair<int64_t, int64_t>> events;
  for (const Interval &interval : intervals) {
    events.push_back({interval.begin, rounded(interval)});
    events.push_back({interval.end + 1, -rounded(interval)});
  }
  llvm::sort(events);
  int64_t live = 0, most = 0;
  for (auto [time, change] : events) {
    live += change;
    if (live > most) {
      most = live;
      if (when)
        *when = time;
    }
  }
  return most;
}

namespace {

/// The range of offsets and the time of an interval.
struct Placed {
  int64_t bottom, top, begin, end;
};

/// Placed intervals from the lowest offset up, in runs of limited length: an
/// insertion moves few of them.
class PlacedList {
public:
  void clear() { runs.clear(); }

  void insert(const Placed &one) {
    auto below = [](int64_t at, const Placed &other) {
      return at < other.bottom;
    };
    auto run = llvm::upper_bound(
        runs, one.bottom, [&](int64_t at, const std::vector<Placed> &other) {
          return below(at, other.front());
        });
    if (run == runs.begin())
      run = runs.empty() ? runs.insert(run, std::vector<Placed>()) : run;
    else
      --run;
    run->insert(llvm::upper_bound(*run, one.bottom, below), one);
    if (run->size() <= kLongestRun)
      return;
    std::vector<Placed> rest(run->begin() + kLongestRun / 2, run->end());
    run->resize(kLongestRun / 2);
    runs.insert(run + 1, std::move(rest));
  }

  /// The lowest offset at which `bytes` are free for all of `interval`.
  int64_t lowestFree(const Interval &interval, int64_t bytes) const {
    int64_t at = 0;
    for (const std::vector<Placed> &run : runs)
      for (const Placed &other : run) {
        if (other.bottom >= at + bytes)
          return at;
        if (other.begin <= interval.end && interval.begin <= other.end)
          at = std::max(at, other.top);
      }
    return at;
  }

private:
  static constexpr size_t kLongestRun = 256;
  std::vector<std::vector<Placed>> runs;
};

/// Packs the same intervals in different orders. Most intervals of a long
/// program are short: the time is cut into equal spans, and an interval within
/// one is compared with those of that span only.
class Packer {
public:
  explicit Packer(ArrayRef<Interval> intervals) : intervals(intervals) {
    int64_t last = 0;
    for (const Interval &interval : intervals)
      last = std::max(last, interval.end);
    spans.resize(std::clamp<size_t>(intervals.size() / 512, 1, kMostSpans));
    length = last / static_cast<int64_t>(spans.size()) + 1;
  }

  /// Places each interval in turn at the lowest free offset. Returns the peak,
  /// at once when it is more than `most`.
  int64_t place(ArrayRef<unsigned> order, std::vector<int64_t> &offsets,
                int64_t most = std::numeric_limits<int64_t>::max()) {
    offsets.assign(intervals.size(), -1);
    all.clear();
    for (PlacedList &span : spans)
      span.clear();
    int64_t peak = 0;
    for (unsigned i : order) {
      const Interval &interval = intervals[i];
      int64_t bytes = rounded(interval);
      size_t first = std::max<int64_t>(interval.begin, 0) / length,
             last = std::max<int64_t>(interval.end, 0) / length;
      int64_t at =
          (first == last ? spans[first] : all).lowestFree(interval, bytes);
      offsets[i] = at;
      peak = std::max(peak, at + bytes);
      if (peak > most)
        return peak;
      Placed placed{at, at + bytes, interval.begin, interval.end};
      if (spans.size() > 1)
        all.insert(placed);
      for (size_t span = first; span <= last; ++span)
        spans[span].insert(placed);
    }
    return peak;
  }

private:
  static constexpr size_t kMostSpans = 64;

  ArrayRef<Interval> intervals;
  /// The intervals placed so far: all, and those in use in each span of
  /// `length`.
  PlacedList all;
  std::vector<PlacedList> spans;
  int64_t length;
};

} // namespace

/// A packing this near to the bound is not improved: the bound itself is often
/// not reached by any.
static constexpr double kNear = 1.02;
/// Searches, and orders that one of them draws: fewer of many intervals, each
/// of which is compared with each.
static constexpr int kSearches = 8;
static constexpr int64_t kMostDraws = 1000, kMostCompared = 300'000'000;

/// A local search from `best`, whose intervals were placed in `order`: moves an
/// interval of those that are in use together with one that ends at the peak
/// earlier or later, or exchanges two, and keeps what is not worse. Draws are
/// the same for each `seed`.
static Packing search(ArrayRef<Interval> intervals, Packer &packer,
                      Packing best, std::vector<unsigned> order,
                      unsigned seed) {
  std::minstd_rand random(seed);
  auto draw = [&](size_t below) { return random() % below; };
  auto topOf = [&](unsigned i, ArrayRef<int64_t> offsets) {
    return offsets[i] + rounded(intervals[i]);
  };
  auto aboveBound = [&](ArrayRef<int64_t> offsets) {
    int64_t sum = 0;
    for (unsigned i = 0; i < intervals.size(); ++i)
      sum += std::max<int64_t>(topOf(i, offsets) - best.lowerBound, 0);
    return sum;
  };
  auto count = static_cast<int64_t>(intervals.size());
  int64_t above = aboveBound(best.offsets);
  std::vector<unsigned> next;
  std::vector<int64_t> offsets;
  for (int64_t draws = std::min(kMostDraws, kMostCompared / (count * count));
       draws > 0 && best.peak > best.lowerBound * kNear; --draws) {
    // The places of those that end at the peak, and of all beside one of them.
    std::vector<size_t> highest, beside;
    for (auto [place, i] : llvm::enumerate(order))
      if (topOf(i, best.offsets) == best.peak)
        highest.push_back(place);
    size_t top = highest[draw(highest.size())];
    for (auto [place, i] : llvm::enumerate(order))
      if (intervals[i].overlaps(intervals[order[top]]))
        beside.push_back(place);
    size_t from = draw(2) ? top : beside[draw(beside.size())];
    size_t to = beside[draw(beside.size())];
    next = order;
    auto first = next.begin() + std::min(from, to),
         last = next.begin() + std::max(from, to);
    if (draw(2))
      std::swap(*first, *last);
    else if (from < to)
      std::rotate(first, first + 1, last + 1);
    else
      std::rotate(first, last, last + 1);
    int64_t peak = packer.place(next, offsets, best.peak);
    if (peak > best.peak)
      continue;
    int64_t sum = aboveBound(offsets);
    if (peak == best.peak && sum > above)
      continue;
    best.peak = peak;
    above = sum;
    best.offsets = offsets;
    order = next;
  }
  return best;
}

Packing cleave::exec::pack(ArrayRef<Interval> intervals) {
  Packing best;
  best.lowerBound = maxLive(intervals);
  best.offsets.assign(intervals.size(), 0);
  best.peak = -1;
  if (intervals.empty())
    return {{}, 0, 0};
  Packer packer(intervals);

  using Key = std::function<std::pair<double, double>(const Interval &)>;
  auto length = [](const Interval &i) { return double(i.end - i.begin + 1); };
  auto size = [](const Interval &i) { return double(i.bytes); };
  const Key keys[] = {
      [&](const Interval &i) { return std::pair(-size(i), -length(i)); },
      [&](const Interval &i) { return std::pair(-size(i) * length(i), 0.0); },
      [&](const Interval &i) { return std::pair(-length(i), -size(i)); },
      [&](const Interval &i) { return std::pair(double(i.begin), -length(i)); },
      [&](const Interval &i) { return std::pair(-double(i.end), -length(i)); },
  };
  std::vector<unsigned> order(intervals.size()), bestOrder;
  std::vector<int64_t> offsets;
  auto attempt = [&](ArrayRef<unsigned> candidate) {
    int64_t peak = packer.place(candidate, offsets);
    if (best.peak >= 0 && peak >= best.peak)
      return false;
    best.peak = peak;
    best.offsets = offsets;
    bestOrder = candidate;
    return true;
  };
  for (const Key &key : keys) {
    for (unsigned i = 0; i < order.size(); ++i)
      order[i] = i;
    llvm::sort(order, [&](unsigned a, unsigned b) {
      return std::pair(key(intervals[a]), a) < std::pair(key(intervals[b]), b);
    });
    attempt(order);
    // No packing is smaller.
    if (best.peak == best.lowerBound)
      return best;
  }
  // The interval that ended highest is placed first in the next round.
  int rounds = intervals.size() < 20000 ? 40 : 4;
  order = bestOrder;
  offsets = best.offsets;
  for (int round = 0; round < rounds && best.peak > best.lowerBound; ++round) {
    int64_t peak = 0;
    for (unsigned i = 0; i < intervals.size(); ++i)
      peak = std::max(peak, offsets[i] + rounded(intervals[i]));
    std::vector<unsigned> next;
    auto atTop = [&](unsigned i) {
      return offsets[i] + rounded(intervals[i]) == peak;
    };
    for (unsigned i : order)
      if (atTop(i))
        next.push_back(i);
    for (unsigned i : order)
      if (!atTop(i))
        next.push_back(i);
    if (next == order)
      break;
    order = next;
    attempt(order);
  }
  Packing start = best;
  for (int seed = 1; seed <= kSearches && best.peak > best.lowerBound * kNear;
       ++seed)
    if (Packing found = search(intervals, packer, start, bestOrder, seed);
        found.peak < best.peak)
      best = std::move(found);
  return best;
}

bool Packings::Before::operator()(const std::vector<Interval> &a,
                                  const std::vector<Interval> &b) const {
  auto key = [](const Interval &one) {
    return std::tuple(one.bytes, one.begin, one.end);
  };
  return std::lexicographical_compare(
      a.begin(), a.end(), b.begin(), b.end(),
      [&](const Interval &x, const Interval &y) { return key(x) < key(y); });
}

const Packing &Packings::pack(ArrayRef<Interval> intervals) {
  auto [it, fresh] = known.try_emplace(intervals.vec());
  if (fresh)
    it->second = exec::pack(intervals);
  return it->second;
}
