//===- Packing.cpp - Intervals packed into one arena ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/Transforms/Memory/Packing.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/Support/MathExtras.h"
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <tuple>
#include <utility>

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

/// Sets of offsets: ranges that do not touch, from the lowest one up.
class OffsetSet {
public:
  struct Range {
    int64_t bottom, top;
  };

  void clear() { ranges.clear(); }

  void insert(int64_t bottom, int64_t top) {
    auto first = llvm::partition_point(
        ranges, [&](const Range &other) { return other.top < bottom; });
    if (first == ranges.end() || first->bottom > top) {
      ranges.insert(first, {bottom, top});
      return;
    }
    first->bottom = std::min(first->bottom, bottom);
    if (top <= first->top)
      return;
    auto last = first + 1;
    for (; last != ranges.end() && last->bottom <= top; ++last)
      top = std::max(top, last->top);
    first->top = top;
    ranges.erase(first + 1, last);
  }

  ArrayRef<Range> get() const { return ranges; }

private:
  std::vector<Range> ranges;
};

/// The part of the time from `begin` until before `end`, and the intervals that
/// use it: in sets those that some interval overlaps for sure, and one by one,
/// from the lowest offset up, those that it may not.
struct Span {
  int64_t begin, end;
  /// Of intervals that use all of the span, that use its begin and end within
  /// it, and that begin within it and use its end.
  OffsetSet always, head, tail;
  std::vector<Placed> heads, tails;
  /// Of those that begin and end within it.
  std::vector<Placed> within;

  void clear() {
    for (OffsetSet *set : {&always, &head, &tail})
      set->clear();
    for (std::vector<Placed> *list : {&heads, &tails, &within})
      list->clear();
  }
};

/// Packs the same intervals in different orders. The time is cut into spans in
/// which as many intervals begin or end. For each group of spans in a binary
/// tree over them, the offsets that are used at any time of it are known: only
/// in its first and its last span is an interval compared with others one by
/// one.
class Packer {
public:
  explicit Packer(ArrayRef<Interval> intervals) : intervals(intervals) {
    count = std::clamp<size_t>(llvm::PowerOf2Ceil(intervals.size() / 128), 1,
                               kMostSpans);
    sometimes.resize(2 * count);
    spans.resize(count);
    cutTime();
    std::map<std::tuple<int64_t, int64_t, int64_t>, unsigned> numbers;
    for (const Interval &interval : intervals)
      equals.push_back(
          numbers
              .try_emplace({interval.begin, interval.end, rounded(interval)},
                           numbers.size())
              .first->second);
    ends.resize(numbers.size());
  }

  /// Places each interval in turn at the lowest free offset. Returns the peak,
  /// at once when it is more than `most`. The first `same` of them are placed
  /// at the offsets `known`, which an earlier order that begins alike has given
  /// them.
  int64_t place(ArrayRef<unsigned> order, std::vector<int64_t> &offsets,
                int64_t most = std::numeric_limits<int64_t>::max(),
                size_t same = 0, ArrayRef<int64_t> known = {}) {
    offsets.assign(intervals.size(), -1);
    std::fill(ends.begin(), ends.end(), 0);
    for (OffsetSet &set : sometimes)
      set.clear();
    for (Span &span : spans)
      span.clear();
    int64_t peak = 0;
    for (auto [place, i] : llvm::enumerate(order)) {
      int64_t bytes = rounded(intervals[i]);
      // What was not free for an equal interval is not free now, and that one
      // takes its place.
      int64_t &end = ends[equals[i]];
      int64_t at = place < same ? known[i] : lowestFree(i, bytes, end);
      end = at + bytes;
      offsets[i] = at;
      peak = std::max(peak, at + bytes);
      if (peak > most)
        return peak;
      if (bytes > 0)
        insert(i, at, at + bytes);
    }
    return peak;
  }

private:
  static constexpr size_t kMostSpans = 16;

  /// Finds the time of each span, and the spans of each interval.
  void cutTime() {
    std::vector<int64_t> times;
    for (const Interval &interval : intervals) {
      times.push_back(interval.begin);
      times.push_back(interval.end + 1);
    }
    llvm::sort(times);
    int64_t end = times.back();
    for (size_t i = count; i-- > 0;) {
      spans[i].begin = times[i * times.size() / count];
      spans[i].end = std::exchange(end, spans[i].begin);
    }
    auto spanOf = [&](int64_t time) -> size_t {
      return llvm::partition_point(
                 spans, [&](const Span &one) { return one.begin <= time; }) -
             spans.begin() - 1;
    };
    for (const Interval &interval : intervals)
      ranges.push_back({spanOf(interval.begin), spanOf(interval.end)});
  }

  static bool beginsWithin(const Interval &interval, const Span &span) {
    return span.begin < interval.begin;
  }
  static bool endsWithin(const Interval &interval, const Span &span) {
    return interval.end < span.end - 1;
  }

  void insert(unsigned i, int64_t bottom, int64_t top) {
    const Interval &interval = intervals[i];
    auto [first, last] = ranges[i];
    for (size_t low = first + count, high = last + count; low > 0;
         low /= 2, high /= 2)
      for (size_t node = low; node <= high; ++node)
        sometimes[node].insert(bottom, top);
    auto list = [&](std::vector<Placed> &own) {
      own.insert(llvm::upper_bound(own, bottom,
                                   [](int64_t at, const Placed &other) {
                                     return at < other.bottom;
                                   }),
                 {bottom, top, interval.begin, interval.end});
    };
    for (Span &span :
         llvm::MutableArrayRef(spans).slice(first, last - first + 1)) {
      bool begins = beginsWithin(interval, span);
      bool ends = endsWithin(interval, span);
      if (begins && ends) {
        list(span.within);
      } else if (begins) {
        span.tail.insert(bottom, top);
        list(span.tails);
      } else if (ends) {
        span.head.insert(bottom, top);
        list(span.heads);
      } else {
        span.always.insert(bottom, top);
      }
    }
  }

  /// Collects what is used beside an interval in a span that it uses some of.
  void collect(const Interval &interval, size_t number) {
    const Span &span = spans[number];
    bool begins = beginsWithin(interval, span);
    bool ends = endsWithin(interval, span);
    if (!begins && !ends) {
      sets.push_back(sometimes[number + count].get());
      return;
    }
    sets.push_back(span.always.get());
    lists.push_back(span.within);
    if (begins)
      lists.push_back(span.heads);
    else
      sets.push_back(span.head.get());
    if (ends)
      lists.push_back(span.tails);
    else
      sets.push_back(span.tail.get());
  }

  /// The lowest offset from `at` on at which `bytes` are free for all of
  /// `interval`; what is in use beside it does not cross `at`.
  int64_t lowestFree(unsigned interval, int64_t bytes, int64_t at) {
    sets.clear();
    lists.clear();
    const Interval &life = intervals[interval];
    auto [first, last] = ranges[interval];
    collect(life, first);
    if (last != first)
      collect(life, last);
    // The fewest nodes of the tree that have the spans between.
    for (size_t low = first + 1 + count, high = last + count; low < high;
         low /= 2, high /= 2) {
      if (low % 2)
        sets.push_back(sometimes[low++].get());
      if (high % 2)
        sets.push_back(sometimes[--high].get());
    }
    if (at > 0) {
      for (ArrayRef<OffsetSet::Range> &set : sets)
        set = set.drop_front(
            llvm::partition_point(set, [&](auto &r) { return r.top <= at; }) -
            set.begin());
      for (ArrayRef<Placed> &list : lists)
        list =
            list.drop_front(llvm::partition_point(
                                list, [&](auto &p) { return p.bottom < at; }) -
                            list.begin());
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (ArrayRef<OffsetSet::Range> &set : sets) {
        size_t i = 0;
        for (; i < set.size() && set[i].bottom < at + bytes; ++i)
          if (set[i].top > at) {
            at = set[i].top;
            moved = true;
          }
        set = set.drop_front(i);
      }
      for (ArrayRef<Placed> &list : lists) {
        size_t i = 0;
        for (; i < list.size() && list[i].bottom < at + bytes; ++i)
          if (list[i].top > at && list[i].begin <= life.end &&
              life.begin <= list[i].end) {
            at = list[i].top;
            moved = true;
          }
        list = list.drop_front(i);
      }
    }
    return at;
  }

  ArrayRef<Interval> intervals;
  /// The number of spans, a power of 2.
  size_t count;
  std::vector<Span> spans;
  /// The first and the last span of each interval.
  std::vector<std::pair<size_t, size_t>> ranges;
  /// What is used at some time of each node of the tree; the spans begin at
  /// `count`, and the node n has the nodes 2n and 2n + 1.
  std::vector<OffsetSet> sometimes;
  /// A number for each interval, which equal ones have in common, and by it
  /// where the last one that was placed ends.
  std::vector<unsigned> equals;
  std::vector<int64_t> ends;
  /// Of the interval that is being placed.
  llvm::SmallVector<ArrayRef<OffsetSet::Range>, 16> sets;
  llvm::SmallVector<ArrayRef<Placed>, 6> lists;
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
    int64_t peak = packer.place(next, offsets, best.peak, std::min(from, to),
                                best.offsets);
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
