//===- VShaped.cpp - Two chunks on each device, down and up ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Chain.h"
#include "GeneratorList.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave::pipe;

namespace {
/// When each letter of a device runs for micro-batch 0; each next micro-batch
/// runs `kRound` later.
using Block = std::vector<std::vector<std::pair<int64_t, Letter>>>;

/// How much later each next device runs a letter on the way: F of the near
/// chunk, F of the far one, I of the far one, I of the near one.
using Pace = std::array<int64_t, 4>;
/// And between them, where the way turns.
using Turns = std::array<int64_t, 3>;

/// The work of a micro-batch on a device, where F = I = W = 1.
constexpr int64_t kRound = 6;
} // namespace

static bool isTaken(llvm::ArrayRef<std::pair<int64_t, Letter>> line,
                    int64_t time) {
  return llvm::any_of(line, [&](const auto &entry) {
    return (entry.first - time) % kRound == 0;
  });
}

/// Places the letters of all devices; W comes to the first free place behind
/// its I. Nothing, if letters of different micro-batches meet.
static Block placeBlock(int64_t p, const Pace &pace, const Turns &turn) {
  int64_t last = p - 1;
  int64_t first = last * pace[0] + turn[0];
  int64_t second = first + last * pace[1] + turn[1];
  int64_t third = second + last * pace[2] + turn[2];
  Block block;
  for (int64_t r = 0; r < p; ++r) {
    int16_t near = r, far = 2 * p - 1 - r;
    auto &line = block.emplace_back();
    for (auto [time, letter] :
         std::initializer_list<std::pair<int64_t, Letter>>{
             {r * pace[0], {F, near}},
             {first + (last - r) * pace[1], {F, far}},
             {second + r * pace[2], {I, far}},
             {third + (last - r) * pace[3], {I, near}}}) {
      if (isTaken(line, time))
        return {};
      line.push_back({time, letter});
    }
    for (int i : {2, 3}) {
      int64_t time = line[i].first + 1;
      while (isTaken(line, time))
        ++time;
      line.push_back({time, {W, line[i].second.stage}});
    }
  }
  return block;
}

/// The block for each micro-batch.
static Words repeatBlock(const Block &block, int64_t microBatches) {
  Words words;
  for (const auto &line : block) {
    std::vector<std::pair<int64_t, Letter>> all;
    for (int64_t k = 0; k < microBatches; ++k)
      for (auto [time, letter] : line)
        all.push_back({time + k * kRound, letter});
    llvm::sort(all,
               [](const auto &a, const auto &b) { return a.first < b.first; });
    Word &word = words.emplace_back();
    for (auto [time, letter] : all)
      word.push_back(letter);
  }
  return words;
}

static int64_t countSaved(const Words &words) {
  int64_t peak = 0;
  for (const Word &word : words) {
    int64_t now = 0;
    for (Letter letter : word) {
      now += letter.kind == F ? 1 : letter.kind == W ? -1 : 0;
      peak = std::max(peak, now);
    }
  }
  return peak;
}

/// The order of F and I is that of the block. W is put off to fill the gaps on
/// the way in and out, as long as no more is saved than in the block's order.
static Words fillGaps(Chain &chain, const Words &words) {
  chain.limit.assign(chain.own.size(), countSaved(words));
  Policy policy;
  policy.order = &words;
  Words filled = chooseGreedily(chain, policy);
  return filled.empty() || chain.evaluate(words) < chain.evaluate(filled)
             ? words
             : filled;
}

/// Of the turns for which no letters meet, those that save least; of these the
/// fastest. Whether letters meet depends on p by the round alone, so they are
/// chosen for few devices.
static Schedule makeFromBlock(const PipelineSize &size,
                              llvm::ArrayRef<Pace> paces) {
  int64_t p = size.devices;
  int64_t small = p <= 3 * kRound ? p : 2 * kRound + p % kRound;
  // The pattern shows within as many micro-batches as are in flight.
  int64_t few = std::min(size.microBatches, 2 * small + 2);
  Chain sample({StageMap::Kind::V, small}, 2 * small, few);
  std::pair<Pace, Turns> best;
  int64_t bestSaved = std::numeric_limits<int64_t>::max();
  double bestTime = kNever;
  for (const Pace &pace : paces)
    for (int64_t i = 0; i < kRound * kRound * kRound; ++i) {
      Turns turns = {1 + i % kRound, 1 + i / kRound % kRound,
                     1 + i / kRound / kRound};
      Block block = placeBlock(small, pace, turns);
      if (block.empty())
        continue;
      Words words = repeatBlock(block, few);
      int64_t saved = countSaved(words);
      if (saved > bestSaved)
        continue;
      double time = sample.evaluate(fillGaps(sample, words));
      if (saved < bestSaved || time < bestTime) {
        best = {pace, turns};
        bestSaved = saved;
        bestTime = time;
      }
    }
  Chain chain({StageMap::Kind::V, p}, 2 * p, size.microBatches);
  Block block = placeBlock(p, best.first, best.second);
  return chain.toSchedule(
      fillGaps(chain, repeatBlock(block, size.microBatches)), /*update=*/true);
}

/// Of device `r`, m >= 2p-1; where F = I = W it is never idle between its first
/// and its last. F of the near chunk runs as far ahead as it takes to go down
/// and up again; then come rounds of both chunks; on the way out the gradients
/// that others wait for come first, and weight gradients fill what is left.
/// Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 6.
static Word makeZeroBubbleWord(int64_t p, int64_t r, int64_t m) {
  Word word;
  const int16_t near = r, far = 2 * p - 1 - r;
  auto repeat = [&](int64_t times, llvm::ArrayRef<Letter> letters) {
    for (int64_t i = 0; i < times; ++i)
      word.insert(word.end(), letters.begin(), letters.end());
  };
  repeat(2 * (p - r) - 1, {{F, near}});
  repeat(r, {{F, far}, {F, near}});
  repeat(p - r, {{F, far}, {I, far}, {W, far}});
  repeat(m - (2 * p - 1 - r),
         {{F, near}, {I, near}, {W, near}, {F, far}, {I, far}, {W, far}});
  repeat(p - r - 1, {{I, near}, {W, near}, {F, far}, {I, far}, {W, far}});
  repeat(r, {{I, near}, {I, far}});
  repeat(p - r, {{I, near}, {W, near}});
  repeat(r, {{W, far}});
  repeat(r, {{W, near}});
  return word;
}

Generated cleave::pipe::makeZeroBubbleV(const PipelineSize &size,
                                        std::string &) {
  int64_t p = size.devices, m = size.microBatches;
  if (m < 2 * p - 1)
    return makeFromBlock(size, {{3, 3, 3, 3}});
  Words words;
  for (int64_t r = 0; r < p; ++r)
    words.push_back(makeZeroBubbleWord(p, r, m));
  return Chain({StageMap::Kind::V, p}, 2 * p, m)
      .toSchedule(words, /*update=*/true);
}

// What a device saves is the time from F to W, of both chunks, over the round:
// 2(p-1) times a third of the sum of the two paces of a chunk, and a constant.

Generated cleave::pipe::makeVHalf(const PipelineSize &size, std::string &) {
  return makeFromBlock(size, {{1, 2, 1, 2}, {2, 1, 2, 1}});
}

Generated cleave::pipe::makeVMin(const PipelineSize &size, std::string &) {
  return makeFromBlock(size, {{1, 1, 1, 1}});
}
