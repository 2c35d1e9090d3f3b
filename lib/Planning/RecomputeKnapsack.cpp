//===- RecomputeKnapsack.cpp - An option for each block -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Planning/ChooseRecompute.h"
#include "llvm/ADT/STLExtras.h"
#include <cmath>

using namespace cleave;

namespace {
/// A choice for the blocks so far.
struct Partial {
  double bytes, seconds;
  /// Of the front before, and the option of the last block.
  unsigned before, option;
};
} // namespace

/// Fronts are at most this long.
static constexpr size_t kLongest = 16384;

/// Leaves only choices that no other one is at least as good as in both.
static void keepFront(std::vector<Partial> &front) {
  llvm::sort(front, [](const Partial &a, const Partial &b) {
    return std::tie(a.bytes, a.seconds, a.before, a.option) <
           std::tie(b.bytes, b.seconds, b.before, b.option);
  });
  size_t kept = 0;
  for (const Partial &one : front)
    if (kept == 0 || one.seconds < front[kept - 1].seconds)
      front[kept++] = one;
  front.resize(kept);
}

std::optional<std::vector<unsigned>>
cleave::chooseOptions(llvm::ArrayRef<std::vector<RecomputeOption>> blocks,
                      double budget) {
  // The least bytes of the blocks from each one on.
  std::vector<double> least(blocks.size() + 1, 0);
  for (size_t i = blocks.size(); i-- > 0;) {
    double own = INFINITY;
    for (const RecomputeOption &option : blocks[i])
      own = std::min(own, option.bytes);
    least[i] = least[i + 1] + own;
  }
  if (!(least[0] <= budget))
    return std::nullopt;
  std::vector<std::vector<Partial>> fronts{{{0, 0, 0, 0}}};
  for (auto [i, options] : llvm::enumerate(blocks)) {
    std::vector<Partial> next;
    for (auto [b, before] : llvm::enumerate(fronts.back()))
      for (auto [o, option] : llvm::enumerate(options))
        if (before.bytes + option.bytes + least[i + 1] <= budget)
          next.push_back({before.bytes + option.bytes,
                          before.seconds + option.seconds,
                          static_cast<unsigned>(b), static_cast<unsigned>(o)});
    keepFront(next);
    if (next.size() > kLongest) {
      double unit = budget / kLongest;
      for (Partial &one : next) {
        double rounded = std::ceil(one.bytes / unit) * unit;
        // The choice of the least bytes stays possible.
        if (rounded + least[i + 1] <= budget)
          one.bytes = rounded;
      }
      keepFront(next);
    }
    fronts.push_back(std::move(next));
  }
  // The last choice of a front takes the least time.
  std::vector<unsigned> chosen(blocks.size());
  if (fronts.back().empty())
    return std::nullopt;
  size_t at = fronts.back().size() - 1;
  for (size_t i = blocks.size(); i-- > 0;) {
    chosen[i] = fronts[i + 1][at].option;
    at = fronts[i + 1][at].before;
  }
  return chosen;
}
