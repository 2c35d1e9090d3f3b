//===- Chain.cpp - A pipeline whose stages form a chain -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Chain.h"
#include "Improve.h"
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

bool Chain::isLegal(const Word &word, int64_t device) const {
  llvm::SmallVector<std::array<int, 3>, 8> count(stages, {0, 0, 0});
  int64_t now = 0;
  for (auto [kind, s] : word) {
    auto &[f, i, w] = count[s];
    if (kind == F) {
      ++f;
      if ((now += saved[s]) > limit[device])
        return false;
      continue;
    }
    if (kind == B && i != w)
      return false;
    if (kind != W && ++i > f)
      return false;
    if (kind != I) {
      if (++w > i)
        return false;
      now -= saved[s];
    }
  }
  return true;
}

double Chain::evaluate(const Words &words) const {
  for (auto [d, word] : llvm::enumerate(words))
    if (!isLegal(word, d))
      return kNever;
  return Timing(*this).run(words);
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
