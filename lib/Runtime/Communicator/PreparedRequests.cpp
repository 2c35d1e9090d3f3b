//===- PreparedRequests.cpp - Comparison of requests ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "PreparedRequests.h"
#include "cleave/Runtime/Communicator/ReduceBlocks.h"

#include <algorithm>

using namespace cleave::runtime;

uint64_t cleave::runtime::hashOf(const std::string &bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char byte : bytes)
    hash = (hash ^ byte) * 0x100000001b3u;
  return hash;
}

void PreparedRequests::add(const cleave_collective *blocks, int32_t count,
                           int members) {
  if (!running)
    list.push_back({hashOf(commonOf(blocks, count, members)),
                    countElements(blocks, count), blocks->kind, blocks->dtype});
}

PreparedRequests::Outcome
PreparedRequests::compare(const std::vector<int32_t> &ranks,
                          const Gather &gather) {
  size_t members = ranks.size();
  std::vector<One> own = std::move(list);
  list.clear();
  running = false;
  struct Sum {
    uint64_t count, hash;
  } mine{own.size(), 0};
  for (const One &one : own)
    mine.hash = mine.hash * 0x9e3779b97f4a7c15u + one.hash;
  std::vector<Sum> sums(members);
  Outcome outcome;
  outcome.compared = gather(&mine, sizeof(mine), sums.data());
  if (!outcome.compared)
    return outcome;
  uint64_t least = sums[0].count;
  for (size_t i = members; i-- > 0;) {
    least = std::min(least, sums[i].count);
    if (sums[i].count != sums[0].count || sums[i].hash != sums[0].hash)
      outcome.member = i;
  }
  size_t other = outcome.member;
  if (other == 0)
    return outcome;

  // All members search for the first difference together.
  std::string first = "rank " + std::to_string(ranks[0]);
  for (size_t i = 0; i < least; ++i) {
    std::vector<One> all(members);
    outcome.compared = gather(&own[i], sizeof(One), all.data());
    if (!outcome.compared)
      return outcome;
    if (all[other].hash == all[0].hash)
      continue;
    auto text = [](const One &one) {
      return describe(one.kind, one.dtype, one.elements);
    };
    outcome.text = "prepares another collective than " + first + ": " +
                   text(all[other]) + ", not " + text(all[0]) +
                   (text(all[other]) == text(all[0]) ? " of other blocks" : "");
    return outcome;
  }
  outcome.text = "prepares " + std::to_string(sums[other].count) +
                 " collectives, but " + first + " prepares " +
                 std::to_string(sums[0].count);
  return outcome;
}
