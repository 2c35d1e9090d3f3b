//===- Greedy.cpp - Runs what can run -------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Chain.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave::pipe;

namespace {
class Greedy {
public:
  Greedy(const Chain &chain, const Policy &policy);
  Words run();

private:
  struct Choice {
    double start = kNever;
    double rank = 0;
    Letter letter = {};
  };
  /// The best of what a device can run next, W left out; and whether an F
  /// would be ready but for the limit.
  Choice choose(size_t device, bool &blocked) const;
  bool step();
  void place(size_t device, Letter letter, double start);
  void skipWeights(size_t device, size_t from);
  double readyForward(int64_t s) const;
  double readyBackward(int64_t s) const;
  bool hasRoom(size_t device, int64_t stage) const;

  const Chain &chain;
  const Policy &policy;
  int64_t m;
  std::vector<double> forward, backward;
  std::vector<std::array<int64_t, 3>> count;
  std::vector<double> free;
  std::vector<int64_t> held;
  /// Where each device is in the order that is given.
  std::vector<size_t> at;
  /// For each stage, what later stages of its device save.
  std::vector<int64_t> reserve;
  Words words;
};
} // namespace

Greedy::Greedy(const Chain &chain, const Policy &policy)
    : chain(chain), policy(policy), m(chain.microBatches),
      forward(chain.stages * m), backward(chain.stages * m),
      count(chain.stages, {0, 0, 0}), free(chain.own.size(), 0),
      held(chain.own.size(), 0), at(chain.own.size(), 0),
      reserve(chain.stages, 0), words(chain.own.size()) {
  if (policy.order)
    return; // It has been made to leave room.
  for (const std::vector<int16_t> &stages : chain.own) {
    int64_t sum = 0;
    for (int16_t s : llvm::reverse(stages)) {
      reserve[s] = sum;
      sum += chain.saved[s];
    }
  }
}

double Greedy::readyForward(int64_t s) const {
  int64_t k = count[s][F];
  if (k == m || (s > 0 && count[s - 1][F] <= k))
    return kNever;
  return s > 0 ? forward[(s - 1) * m + k] + chain.forwardMove[s - 1] : 0;
}

double Greedy::readyBackward(int64_t s) const {
  int64_t k = count[s][I];
  if (count[s][F] <= k || (s + 1 < chain.stages && count[s + 1][I] <= k))
    return kNever;
  return s + 1 < chain.stages
             ? backward[(s + 1) * m + k] + chain.backwardMove[s + 1]
             : 0;
}

/// Room stays for what later stages of the device save of one micro-batch, so
/// that the oldest in flight can always go on.
bool Greedy::hasRoom(size_t device, int64_t s) const {
  return chain.saved[s] + reserve[s] <= chain.limit[device] - held[device];
}

Greedy::Choice Greedy::choose(size_t device, bool &blocked) const {
  Choice best;
  auto offer = [&](double ready, double rank, Letter letter) {
    double start = std::max(ready, free[device]);
    if (start < best.start || (start == best.start && rank < best.rank))
      best = {start, rank, letter};
  };
  if (policy.order) {
    if (at[device] == (*policy.order)[device].size())
      return best;
    Letter letter = (*policy.order)[device][at[device]];
    if (letter.kind == I)
      offer(readyBackward(letter.stage), 0, letter);
    else if (hasRoom(device, letter.stage))
      offer(readyForward(letter.stage), 0, letter);
    else
      blocked = true;
    return best;
  }
  for (int16_t s : chain.own[device]) {
    double place = static_cast<double>(s) / chain.stages / 4;
    if (double ready = readyBackward(s); ready < kNever)
      offer(ready, policy.rank[I] - policy.lateBackward * place,
            {policy.whole ? B : I, s});
    double ready = readyForward(s);
    if (ready == kNever)
      continue;
    if (!policy.ahead.empty() && count[s][F] - count[s][I] >= policy.ahead[s])
      continue;
    if (hasRoom(device, s))
      offer(ready, policy.rank[F] - policy.lateForward * place, {F, s});
    else if (ready <= free[device])
      blocked = true;
  }
  return best;
}

void Greedy::skipWeights(size_t device, size_t from) {
  const Word &word = (*policy.order)[device];
  while (from < word.size() && word[from].kind == W)
    ++from;
  at[device] = from;
}

void Greedy::place(size_t device, Letter letter, double start) {
  auto [kind, s] = letter;
  if (policy.order && kind != W)
    skipWeights(device, at[device] + 1);
  free[device] = start + chain.cost[s][kind];
  words[device].push_back(letter);
  if (kind == F) {
    forward[s * m + count[s][F]++] = free[device];
    held[device] += chain.saved[s];
    return;
  }
  if (kind != W)
    backward[s * m + count[s][I]++] = free[device];
  if (kind != I) {
    ++count[s][W];
    held[device] -= chain.saved[s];
  }
}

/// Of all devices the one that can act first does so.
bool Greedy::step() {
  Choice first;
  size_t actor = 0;
  for (size_t d = 0; d < words.size(); ++d) {
    bool blocked = false;
    Choice choice = choose(d, blocked);
    // W of the stage that waits longest.
    int16_t stage = -1;
    for (int16_t s : chain.own[d])
      if (count[s][I] > count[s][W] &&
          (stage < 0 || count[s][W] < count[stage][W]))
        stage = s;
    if (stage >= 0 && choice.start > free[d]) {
      double end = free[d] + chain.cost[stage][W];
      if (!policy.patient || blocked || end <= choice.start)
        choice = {free[d], 2, {W, stage}};
    }
    if (choice.start < first.start) {
      first = choice;
      actor = d;
    }
  }
  if (first.start == kNever)
    return false;
  place(actor, first.letter, first.start);
  return true;
}

Words Greedy::run() {
  for (auto [d, stages] : llvm::enumerate(chain.own)) {
    int64_t least = 0;
    for (int16_t s : stages)
      least += chain.saved[s];
    if (least > chain.limit[d])
      return {};
  }
  if (policy.order)
    for (size_t d = 0; d < words.size(); ++d)
      skipWeights(d, 0);
  while (step())
    ;
  for (const auto &number : count)
    if (number[W] < m)
      return {};
  return std::move(words);
}

Words cleave::pipe::chooseGreedily(const Chain &chain, const Policy &policy) {
  return Greedy(chain, policy).run();
}
