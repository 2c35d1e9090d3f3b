//===- Improve.cpp - Local search on orders -------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Improve.h"
#include <cmath>
#include <random>

using namespace cleave::pipe;

Timing::Timing(const Chain &chain)
    : chain(chain), m(chain.microBatches), forward(chain.stages * m),
      backward(chain.stages * m), free(chain.own.size()),
      forwardAt(chain.stages * m), backwardAt(chain.stages * m),
      count(chain.stages), at(chain.own.size()), waited(chain.own.size()) {}

bool Timing::place(const Words &words, int d) {
  auto [kind, s] = words[d][at[d]];
  auto &[f, i, w] = count[s];
  double ready = -1;
  Place from{-1, 0};
  if (kind == F) {
    if (s > 0) {
      if (count[s - 1][F] <= f)
        return false;
      ready = forward[(s - 1) * m + f] + chain.forwardMove[s - 1];
      from = forwardAt[(s - 1) * m + f];
    }
  } else if (kind == W) {
    if (i <= w)
      return false;
  } else {
    if (f <= i || (kind == B && w != i))
      return false;
    if (s + 1 < chain.stages) {
      if (count[s + 1][I] <= i)
        return false;
      ready = backward[(s + 1) * m + i] + chain.backwardMove[s + 1];
      from = backwardAt[(s + 1) * m + i];
    }
  }
  if (ready > free[d])
    free[d] = ready;
  else
    from.device = -1;
  waited[d][at[d]] = from;
  free[d] += chain.cost[s][kind];
  if (free[d] > last) {
    last = free[d];
    lastAt = {d, at[d]};
  }
  if (kind == F) {
    forwardAt[s * m + f] = {d, at[d]};
    forward[s * m + f++] = free[d];
  } else if (kind != W) {
    backwardAt[s * m + i] = {d, at[d]};
    backward[s * m + i++] = free[d];
  }
  if (kind == W || kind == B)
    ++w;
  ++at[d];
  return true;
}

double Timing::run(const Words &words) {
  int devices = words.size();
  for (auto &number : count)
    number = {0, 0, 0};
  for (int d = 0; d < devices; ++d) {
    at[d] = 0;
    free[d] = 0;
    waited[d].resize(words[d].size());
  }
  last = 0;
  lastAt = {0, -1};
  auto advance = [&](int d) {
    bool moved = false;
    while (at[d] < static_cast<int>(words[d].size()) && place(words, d))
      moved = true;
    return moved;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (int d = 0; d < devices; ++d)
      progress |= advance(d);
    for (int d = devices; d-- > 0;)
      progress |= advance(d);
  }
  for (int d = 0; d < devices; ++d)
    if (at[d] < static_cast<int>(words[d].size()))
      return kNever;
  return last;
}

void Timing::criticalPairs(const Words &words,
                           std::vector<std::pair<int, int>> &pairs) const {
  pairs.clear();
  Place here = lastAt;
  while (here.index >= 0) {
    Place from = waited[here.device][here.index];
    if (from.device >= 0) {
      here = from;
      continue;
    }
    if (here.index > 0)
      pairs.push_back({here.device, here.index});
    --here.index;
  }
}

namespace {
class Climber {
public:
  Climber(const Chain &chain, Words words)
      : chain(chain), timing(chain), now(std::move(words)) {}

  Words run(int64_t tries);

private:
  /// Moves a letter; false if the word would not be legal.
  bool move(int device, int from, int to);

  const Chain &chain;
  Timing timing;
  Words now;
  std::mt19937 random{1};
};
} // namespace

static Word moved(Word word, int from, int to) {
  if (from < to)
    std::rotate(word.begin() + from, word.begin() + from + 1,
                word.begin() + to + 1);
  else
    std::rotate(word.begin() + to, word.begin() + from,
                word.begin() + from + 1);
  return word;
}

bool Climber::move(int device, int from, int to) {
  Word next = moved(now[device], from, to);
  if (!chain.isLegal(next, device))
    return false;
  now[device].swap(next);
  return true;
}

Words Climber::run(int64_t tries) {
  double value = timing.run(now), best = value;
  Words bestWords = now;
  double bound = chain.lowerBound();
  std::vector<std::pair<int, int>> pairs;
  timing.criticalPairs(now, pairs);
  // Worse orders are taken with a chance that falls to nothing.
  double heat = 0.02 * value;
  for (int64_t k = 0; k < tries && best > bound && !pairs.empty(); ++k) {
    double chance = heat * (1 - static_cast<double>(k) / tries);
    auto [d, i] = pairs[random() % pairs.size()];
    int size = now[d].size(), to = i - 1, from = i;
    switch (random() % 4) {
    case 0: // The second comes earlier by more than one.
      to = std::max<int>(0, i - 1 - random() % 8);
      break;
    case 1: // The first comes later by more than one.
      from = i - 1;
      to = std::min<int>(size - 1, i + random() % (random() % 2 ? 8 : size));
      break;
    default:
      break;
    }
    if (now[d][from] == now[d][to] || !move(d, from, to))
      continue;
    double next = timing.run(now);
    double worse = next - value;
    bool take =
        worse <= 0 || (worse < kNever && chance > 0 &&
                       std::exp(-worse / chance) * 4294967296.0 > random());
    if (!take) {
      now[d] = moved(std::move(now[d]), to, from);
      continue;
    }
    value = next;
    timing.criticalPairs(now, pairs);
    if (value < best) {
      best = value;
      bestWords = now;
    }
  }
  return bestWords;
}

Words cleave::pipe::improve(const Chain &chain, Words words, int64_t tries) {
  return Climber(chain, std::move(words)).run(tries);
}
