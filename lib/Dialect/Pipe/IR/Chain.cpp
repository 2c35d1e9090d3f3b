//===- Chain.cpp - A pipeline whose stages form a chain -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Chain.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave::pipe;

Chain::Chain(const StageMap &map, int64_t stages, int64_t microBatches)
    : map(map), stages(stages), microBatches(microBatches),
      cost(stages, {1, 1, 1, 2}), forwardMove(stages, 0),
      backwardMove(stages, 0), saved(stages, 1),
      limit(map.devices, std::numeric_limits<int64_t>::max()),
      own(map.devices) {
  for (int64_t s = 0; s < stages; ++s)
    own[map.device(s)].push_back(s);
}

bool Chain::fits(const Word &word, int64_t device) const {
  int64_t now = 0;
  for (Letter letter : word) {
    if (letter.kind == F)
      now += saved[letter.stage];
    else if (letter.kind != I)
      now -= saved[letter.stage];
    if (now > limit[device])
      return false;
  }
  return true;
}

double Chain::evaluate(const Words &words) const {
  for (auto [d, word] : llvm::enumerate(words))
    if (!fits(word, d))
      return kNever;
  int64_t m = microBatches;
  // When F and I of each stage and micro-batch have ended.
  std::vector<double> forward(stages * m), backward(stages * m);
  std::vector<std::array<int64_t, 3>> count(stages, {0, 0, 0});
  std::vector<size_t> at(words.size(), 0);
  std::vector<double> free(words.size(), 0);
  double last = 0;
  // Whether the next letter of a device can be placed; places it.
  auto place = [&](size_t d) {
    auto [kind, s] = words[d][at[d]];
    auto &[f, i, w] = count[s];
    double ready = 0;
    if (kind == F) {
      if (s > 0) {
        if (count[s - 1][F] <= f)
          return false;
        ready = forward[(s - 1) * m + f] + forwardMove[s - 1];
      }
    } else if (kind == W) {
      if (i <= w)
        return false;
    } else {
      if (f <= i || (kind == B && w != i))
        return false;
      if (s + 1 < stages) {
        if (count[s + 1][I] <= i)
          return false;
        ready = backward[(s + 1) * m + i] + backwardMove[s + 1];
      }
    }
    free[d] = std::max(free[d], ready) + cost[s][kind];
    last = std::max(last, free[d]);
    if (kind == F)
      forward[s * m + f++] = free[d];
    else if (kind != W)
      backward[s * m + i++] = free[d];
    if (kind == W || kind == B)
      ++w;
    ++at[d];
    return true;
  };
  for (bool progress = true; progress;) {
    progress = false;
    // Down and up again: what F and I wait for is mostly placed then.
    for (size_t d = 0; d < words.size(); ++d)
      while (at[d] < words[d].size() && place(d))
        progress = true;
    for (size_t d = words.size(); d-- > 0;)
      while (at[d] < words[d].size() && place(d))
        progress = true;
  }
  for (auto [d, word] : llvm::enumerate(words))
    if (at[d] < word.size())
      return kNever;
  return last;
}

double Chain::lowerBound() const {
  // A device begins after the way down to its first stage, and after it has
  // worked there is the way up from it at least.
  std::vector<double> down(stages, 0), up(stages, 0);
  for (int64_t s = 1; s < stages; ++s) {
    down[s] = down[s - 1] + cost[s - 1][F] + forwardMove[s - 1];
    up[s] = up[s - 1] + cost[s - 1][I] + backwardMove[s];
  }
  double bound = 0;
  for (auto [d, stagesOfDevice] : llvm::enumerate(own)) {
    double work = 0, first = kNever, behind = kNever;
    for (int64_t s : stagesOfDevice) {
      double both = cost[s][I] + cost[s][W];
      work += cost[s][F] + (split ? std::min(both, cost[s][B]) : cost[s][B]);
      first = std::min(first, down[s]);
      // The last of its letters may be a W, with nothing behind it.
      behind = std::min(behind, split ? 0 : up[s]);
    }
    bound = std::max(bound, first + work * microBatches + behind);
  }
  return bound;
}

static const char *const kParts[] = {"F", "I", "W", "B"};

Schedule Chain::toSchedule(const Words &words, bool update) const {
  Schedule schedule;
  schedule.devices.clear();
  for (auto [d, word] : llvm::enumerate(words)) {
    std::vector<Action> &actions = schedule.devices.emplace_back();
    std::vector<std::array<int64_t, 3>> count(stages, {0, 0, 0});
    for (Letter letter : word) {
      auto &number = count[letter.stage];
      int64_t k = number[letter.kind == B ? I : letter.kind]++;
      if (letter.kind == B)
        ++number[W];
      actions.push_back({kParts[letter.kind], k, letter.stage});
    }
    if (update)
      for (int64_t s : own[d])
        actions.push_back({"U", -1, s});
  }
  return schedule;
}

std::optional<Words> Chain::toWords(const Schedule &schedule) const {
  Words words;
  for (const std::vector<Action> &actions : schedule.devices) {
    Word &word = words.emplace_back();
    for (const Action &action : actions) {
      const auto *it = llvm::find(kParts, action.part);
      if (it != std::end(kParts))
        word.push_back({static_cast<Kind>(it - std::begin(kParts)),
                        static_cast<int16_t>(action.stage)});
    }
  }
  // The order of micro-batches is that of the words, or another one.
  Schedule again = toSchedule(words, false);
  for (auto [d, actions] : llvm::enumerate(schedule.devices)) {
    size_t next = 0;
    for (const Action &action : actions)
      if (llvm::is_contained(kParts, action.part) &&
          !(again.devices[d][next++] == action))
        return std::nullopt;
  }
  return words;
}
