//===- Layers.cpp - Where the layers of a model begin ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Layers are found by structure: a run of ops is repeated, with the same names
/// and types. A repetition is the same wherever its first element is taken to
/// be, as far as the ops go on: a layer begins where fewest bytes cross. Beside
/// the longest run others are looked for, as an encoder has one and a decoder
/// another. Where layers take turns, as one with experts and one without, the
/// pattern that is repeated has several of them: each begins with the same ops.
/// So does a layer beside a run that differs from those of it, as the first
/// one, which has no sum of earlier layers to add to.
///
//===----------------------------------------------------------------------===//

#include "Layers.h"
#include "llvm/ADT/Hashing.h"
#include "llvm/ADT/STLExtras.h"
#include <numeric>

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

size_t cleave::pipe::labelOf(ArrayRef<Operation *> ops) {
  llvm::hash_code label(ops.size());
  for (Operation *op : ops) {
    label = llvm::hash_combine(label, op->getName().getAsOpaquePointer());
    for (Type type : op->getOperandTypes())
      label = llvm::hash_combine(label, type.getAsOpaquePointer());
    for (Type type : op->getResultTypes())
      label = llvm::hash_combine(label, type.getAsOpaquePointer());
  }
  return static_cast<size_t>(label);
}

RepeatedRun cleave::pipe::findRepetition(ArrayRef<size_t> labels) {
  RepeatedRun best;
  for (size_t period = 1; 2 * period <= labels.size(); ++period)
    for (size_t begin = 0; begin + 2 * period <= labels.size();) {
      size_t end = begin + period;
      while (end < labels.size() && labels[end] == labels[end - period])
        ++end;
      RepeatedRun found{begin, period, (end - begin) / period};
      if (found.count >= 2 && found.covered() > best.covered())
        best = found;
      // Between here and there, no repetition is longer.
      begin = std::max(begin + 1, end - period + 1);
    }
  return best;
}

/// A run whose layers take less than this share of the longest layer's time is
/// no run of layers.
static constexpr double kLeastShare = 0.1;

namespace {
/// Ops in an order, of which some are repeated.
class Finder {
public:
  Finder(ArrayRef<Operation *> ops, ArrayRef<double> seconds,
         ArrayRef<int64_t> crossing)
      : ops(ops), seconds(seconds), crossing(crossing) {
    for (Operation *op : ops)
      labels.push_back(labelOf(op));
  }

  /// Adds the runs among the ops from `begin` to `end`.
  void findRuns(size_t begin, size_t end);
  void dropSmall();
  /// The first ops of the layers of run number `r`, and the end of the last.
  SmallVector<size_t> layersOf(size_t r) const;

  SmallVector<RepeatedRun> runs;

private:
  /// The bytes that cross at `at`, a place in the first layer of a run, and at
  /// that of each other layer; but not before the run, where no layer ends.
  int64_t crossingAt(const RepeatedRun &run, size_t at) const {
    int64_t sum = 0;
    size_t first = at == run.begin ? 1 : 0;
    for (size_t k = first; k < run.count; ++k)
      sum += crossing[at + k * run.period];
    return sum / static_cast<int64_t>(run.count - first);
  }
  bool beginsAt(size_t at, ArrayRef<size_t> first) const {
    return ArrayRef(labels).drop_front(at).take_front(first.size()) == first;
  }

  ArrayRef<Operation *> ops;
  ArrayRef<double> seconds;
  ArrayRef<int64_t> crossing;
  std::vector<size_t> labels;
};
} // namespace

void Finder::findRuns(size_t begin, size_t end) {
  RepeatedRun run = findRepetition(ArrayRef(labels).slice(begin, end - begin));
  if (!run.count)
    return;
  run.begin += begin;
  // The last of the places where equally few bytes cross: ops before the layers
  // differ from those of layers less often than ops after them.
  RepeatedRun best = run;
  for (RepeatedRun moved = run;
       moved.end() < end &&
       labels[moved.end()] == labels[moved.end() - run.period];) {
    ++moved.begin;
    if (crossingAt(moved, moved.begin) <= crossingAt(best, best.begin))
      best = moved;
  }
  findRuns(begin, best.begin);
  runs.push_back(best);
  findRuns(best.end(), end);
}

void Finder::dropSmall() {
  auto timeOf = [&](const RepeatedRun &run) {
    ArrayRef<double> own = seconds.slice(run.begin, run.period);
    return std::accumulate(own.begin(), own.end(), 0.0);
  };
  double longest = 0;
  for (const RepeatedRun &run : runs)
    longest = std::max(longest, timeOf(run));
  llvm::erase_if(runs, [&](const RepeatedRun &run) {
    return timeOf(run) < kLeastShare * longest;
  });
}

SmallVector<size_t> Finder::layersOf(size_t r) const {
  const RepeatedRun &run = runs[r];
  // The pattern in pieces, between which as few bytes cross as before it.
  SmallVector<size_t> narrow{run.begin};
  for (size_t at = run.begin + 1; at < run.begin + run.period; ++at)
    if (crossingAt(run, at) <= crossingAt(run, run.begin))
      narrow.push_back(at);
  narrow.push_back(run.begin + run.period);
  ArrayRef<size_t> first = ArrayRef(labels).slice(
      run.begin,
      narrow.size() > 2 ? narrow[1] - run.begin : (run.period + 1) / 2);
  SmallVector<size_t> layers;
  bool before = false;
  for (size_t i = 0; i + 1 < narrow.size(); ++i) {
    bool begins = i == 0 || (beginsAt(narrow[i], first) &&
                             narrow[i + 1] - narrow[i] == first.size());
    if (begins && !before)
      for (size_t k = 0; k < run.count; ++k)
        layers.push_back(narrow[i] + k * run.period);
    before = begins;
  }
  llvm::sort(layers);
  // The longest layer, and half as much: so far away is the next one.
  size_t length = 0;
  for (auto [i, at] : llvm::enumerate(layers))
    length = std::max(length,
                      (i + 1 < layers.size() ? layers[i + 1] : run.end()) - at);
  size_t lowest = r > 0 ? runs[r - 1].end() : 0;
  for (size_t at = run.begin, next = at;
       at > lowest && next - at < length + length / 2;)
    if (beginsAt(--at, first) && crossing[at] <= crossing[run.begin] &&
        next - at >= length / 2) {
      layers.insert(layers.begin(), at);
      next = at;
    }
  size_t end = run.end(),
         highest = r + 1 < runs.size() ? runs[r + 1].begin : ops.size();
  while (end < highest && beginsAt(end, first) && first.size() > 1) {
    layers.push_back(end);
    size_t next = end + 1;
    while (next < std::min(highest, end + length + length / 2) &&
           !beginsAt(next, first))
      ++next;
    end = next < highest && beginsAt(next, first)
              ? next
              : std::min(highest, end + length);
    if (end != next)
      break;
  }
  layers.push_back(end);
  return layers;
}

Layers::Layers(ArrayRef<Operation *> ops, ArrayRef<double> seconds,
               ArrayRef<int64_t> crossing)
    : first(ops.size(), false), within(ops.size(), false) {
  Finder finder(ops, seconds, crossing);
  finder.findRuns(0, ops.size());
  finder.dropSmall();
  for (size_t r = 0; r < finder.runs.size(); ++r) {
    SmallVector<size_t> layers = finder.layersOf(r);
    within.set(layers.front(), layers.back());
    for (size_t at : ArrayRef(layers).drop_back())
      first.set(at);
  }
  within.reset(first);
}
