//===- DualPipe.cpp - Forward of one chunk beside backward of the other ---===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Chain.h"
#include "GeneratorList.h"

using namespace cleave::pipe;

/// Device r holds stage r (near) and 2p-1-r (far). It goes ahead with near
/// forwards until the first comes back, takes forwards of both until the first
/// backward comes back, and then puts a forward of one chunk beside a backward
/// of the other. Backwards are split where somebody waits for the first half
/// and there are no forwards to run beside: on the way in and on the way out.
Generated cleave::pipe::makeDualPipeV(const PipelineSize &size,
                                      std::string &error) {
  int64_t p = size.devices, m = size.microBatches;
  if (m < 2 * p) {
    error = "dualpipe-v: " + std::to_string(m) +
            " micro-batches are too few for " + std::to_string(p) +
            " devices; give at least " + std::to_string(2 * p);
    return std::nullopt;
  }
  Chain chain({StageMap::Kind::V, p}, 2 * p, m);
  Words words;
  for (int64_t r = 0; r < p; ++r) {
    Word &word = words.emplace_back();
    int16_t near = r, far = 2 * p - 1 - r;
    int64_t behind = p - 1 - r;
    auto add = [&](std::initializer_list<Letter> letters) {
      word.insert(word.end(), letters);
    };
    for (int64_t i = 0; i < 2 * behind; ++i)
      add({{F, near}});
    for (int64_t i = 0; i <= r; ++i)
      add({{F, near}, {F, far}});
    for (int64_t i = 0; i < behind; ++i)
      add({{I, far}, {W, far}, {F, far}});
    for (int64_t i = 0; i < m - 2 * p + r + 1; ++i)
      add({{F, near}, {B, far}, {F, far}, {B, near}});
    for (int64_t i = 0; i < behind; ++i)
      add({{B, far}, {F, far}, {B, near}});
    // From half of these on, weight gradients wait. Their number grows by one
    // with each input gradient, so later ones find as many to fill gaps with.
    Word late;
    for (int64_t i = 0; i <= 2 * r + 1; ++i) {
      int16_t stage = i % 2 ? near : far;
      if (i <= r) {
        add({{B, stage}});
        continue;
      }
      add({{I, stage}});
      late.push_back({W, stage});
    }
    size_t next = 0;
    for (int64_t i = 0; i < behind; ++i) {
      word.push_back(late[next++]);
      add({{I, near}});
      late.push_back({W, near});
    }
    word.insert(word.end(), late.begin() + next, late.end());
  }
  return chain.toSchedule(words, /*update=*/true);
}
