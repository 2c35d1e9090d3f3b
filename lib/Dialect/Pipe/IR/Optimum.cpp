//===- Optimum.cpp - The best order of a small pipeline -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Branch and bound. Of all letters that can be placed, let one end first, on
/// device d: what d does next begins before that end, for otherwise the letter
/// fits in front of it. (An F that comes earlier saves for longer; but with one
/// stage on a device, what it passes only frees.) So only those letters of d
/// are tried. Of two states with the same letters placed, one that is nowhere
/// later replaces the other.
///
//===----------------------------------------------------------------------===//

#include "Improve.h"
#include "llvm/ADT/STLExtras.h"
#include <map>

using namespace cleave::pipe;

namespace {
class Brancher {
public:
  Brancher(const Chain &chain, double best, int64_t steps);

  void branch();
  std::optional<Words> found;
  int64_t steps;

private:
  /// When the next letter of a kind could begin on a device; never, if it
  /// cannot come next.
  double startOf(int64_t d, Kind kind) const;
  double bound() const;
  bool isDominated();

  const Chain &chain;
  int64_t p, m;
  double best;
  Words words;
  std::vector<std::array<int64_t, 3>> count;
  std::vector<std::vector<double>> forward, backward;
  std::vector<double> free;
  std::map<std::vector<int64_t>, std::vector<std::vector<double>>> seen;
};
} // namespace

Brancher::Brancher(const Chain &chain, double best, int64_t steps)
    : steps(steps), chain(chain), p(chain.stages), m(chain.microBatches),
      best(best), words(p), count(p, {0, 0, 0}), forward(p), backward(p),
      free(p, 0) {}

double Brancher::startOf(int64_t s, Kind kind) const {
  auto [f, i, w] = count[s];
  double ready = 0;
  if (kind == F) {
    if (f == m || chain.saved[s] * (f - w + 1) > chain.limit[s] ||
        (s > 0 && count[s - 1][F] <= f))
      return kNever;
    if (s > 0)
      ready = forward[s - 1][f] + chain.forwardMove[s - 1];
  } else if (kind == W) {
    if (!chain.split || i == w)
      return kNever;
  } else {
    if (kind == (chain.split ? B : I) &&
        (!chain.split ||
         chain.cost[s][B] >= chain.cost[s][I] + chain.cost[s][W]))
      return kNever;
    if (i == f || (kind == B && i != w) || (s + 1 < p && count[s + 1][I] <= i))
      return kNever;
    if (s + 1 < p)
      ready = backward[s + 1][i] + chain.backwardMove[s + 1];
  }
  return std::max(ready, free[s]);
}

/// No order that goes on from here ends earlier.
double Brancher::bound() const {
  double result = 0, up = 0;
  for (int64_t s = 0; s < p; ++s) {
    auto [f, i, w] = count[s];
    const auto &cost = chain.cost[s];
    double first = chain.split ? std::min(cost[I], cost[B]) : cost[B];
    double whole = chain.split ? std::min(cost[I] + cost[W], cost[B]) : cost[B];
    double start = free[s] + (m - f) * cost[F];
    result = std::max(result, start + (m - i) * whole + (i - w) * cost[W]);
    // Behind its last input gradient, those of the stages before.
    if (i < m)
      result = std::max(result, start + (m - i) * first + up);
    up += first;
    if (s > 0)
      up += chain.backwardMove[s];
  }
  return result;
}

/// Whether a state with the same letters placed was nowhere later.
bool Brancher::isDominated() {
  std::vector<int64_t> letters;
  std::vector<double> times(free);
  for (int64_t s = 0; s < p; ++s) {
    letters.insert(letters.end(), count[s].begin(), count[s].end());
    if (s + 1 < p)
      for (int64_t k = count[s + 1][F]; k < count[s][F]; ++k)
        times.push_back(
            std::max(free[s + 1], forward[s][k] + chain.forwardMove[s]));
    if (s > 0)
      for (int64_t k = count[s - 1][I]; k < count[s][I]; ++k)
        times.push_back(
            std::max(free[s - 1], backward[s][k] + chain.backwardMove[s]));
  }
  auto &known = seen[letters];
  auto notLater = [](const std::vector<double> &a,
                     const std::vector<double> &b) {
    for (auto [x, y] : llvm::zip_equal(a, b))
      if (x > y)
        return false;
    return true;
  };
  for (const std::vector<double> &other : known)
    if (notLater(other, times))
      return true;
  llvm::erase_if(known, [&](const std::vector<double> &other) {
    return notLater(times, other);
  });
  known.push_back(std::move(times));
  return false;
}

void Brancher::branch() {
  if (--steps < 0 || bound() >= best)
    return;
  int64_t device = -1;
  double firstEnd = kNever;
  for (int64_t s = 0; s < p; ++s)
    for (Kind kind : {F, I, W, B})
      if (double end = startOf(s, kind) + chain.cost[s][kind];
          end < firstEnd || (end == firstEnd && end < kNever && device < 0)) {
        firstEnd = end;
        device = s;
      }
  if (device < 0) {
    bool done =
        llvm::all_of(count, [&](const auto &number) { return number[W] == m; });
    double end = *std::max_element(free.begin(), free.end());
    if (done && end < best) {
      best = end;
      found = words;
    }
    return;
  }
  if (isDominated())
    return;
  const auto cost = chain.cost[device];
  for (Kind kind : {I, B, F, W}) {
    double start = startOf(device, kind);
    // What takes no time may begin at that end.
    if (start == kNever || start > firstEnd ||
        (start == firstEnd && start + cost[kind] > firstEnd))
      continue;
    double before = free[device];
    free[device] = start + cost[kind];
    words[device].push_back({kind, static_cast<int16_t>(device)});
    auto &number = count[device];
    auto &ends = kind == F ? forward[device] : backward[device];
    if (kind != W)
      ends.push_back(free[device]);
    ++number[kind == B ? I : kind];
    number[W] += kind == B;
    branch();
    number[W] -= kind == B;
    --number[kind == B ? I : kind];
    if (kind != W)
      ends.pop_back();
    words[device].pop_back();
    free[device] = before;
  }
}

std::optional<Words> cleave::pipe::findOptimum(const Chain &chain, double known,
                                               int64_t steps, bool &proved) {
  proved = false;
  if (chain.stages != static_cast<int64_t>(chain.own.size()))
    return std::nullopt;
  for (auto [d, own] : llvm::enumerate(chain.own))
    if (own.size() != 1 || own.front() != static_cast<int64_t>(d))
      return std::nullopt;
  Brancher brancher(chain, known, steps);
  brancher.branch();
  proved = brancher.steps >= 0;
  return brancher.found;
}
