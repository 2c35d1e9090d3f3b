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

/// Packs the same intervals in different orders.
class Packer {
public:
  explicit Packer(ArrayRef<Interval> intervals) : intervals(intervals) {}

  /// Places each interval in turn at the lowest free offset.
  int64_t place(ArrayRef<unsigned> order, std::vector<int64_t> &offsets) {
    offsets.assign(intervals.size(), -1);
    placed.clear();
    int64_t peak = 0;
    for (unsigned i : order) {
      const Interval &interval = intervals[i];
      int64_t at = 0, bytes = rounded(interval);
      for (const Placed &other : placed) {
        if (other.bottom >= at + bytes)
          break;
        if (other.begin <= interval.end && interval.begin <= other.end)
          at = std::max(at, other.top);
      }
      offsets[i] = at;
      peak = std::max(peak, at + bytes);
      auto next =
          llvm::upper_bound(placed, at, [](int64_t at, const Placed &other) {
            return at < other.bottom;
          });
      placed.insert(next, {at, at + bytes, interval.begin, interval.end});
    }
    return peak;
  }

private:
  /// The range of offsets and the time of an interval.
  struct Placed {
    int64_t bottom, top, begin, end;
  };

  ArrayRef<Interval> intervals;
  /// The intervals placed so far, from the lowest offset up.
  std::vector<Placed> placed;
};

} // namespace

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
  return best;
}
