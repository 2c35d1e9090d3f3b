//===- Interleaved.cpp - 1F1B of several chunks at each position ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "GeneratorList.h"

using namespace cleave::scheduling;

/// 1F1B of v chunks at each position: groups of p micro-batches run through the
/// first chunk of all positions, then through the second, and so on; backward
/// in the reverse order of chunks. Narayanan et al., "Efficient Large-Scale
/// Language Model Training on GPU Clusters Using Megatron-LM", arXiv
/// 2104.04473, section 2.2.
///
/// Timeline for p = 3, v = 2, m = 3, F = U = 1, B = 2 (the second chunk in
/// small letters, a dot is one idle unit):
///
///   0  F0F1F2f0f1f2. . . . b0  . b1  . b2  B0  B1  B2  U u
///   1  . F0F1F2f0f1f2. b0  . b1  . b2  B0  B1  B2  U u
///   2  . . F0F1F2f0b0  f1b1  f2b2  B0  B1  B2  U u
///
Generated cleave::scheduling::makeInterleaved(const PipelineSize &size,
                                              std::string &error) {
  int64_t p = size.devices, v = size.chunks, m = size.microBatches;
  if (m % p) {
    error = "interleaved: " + std::to_string(m) +
            " micro-batches are not divisible by " + std::to_string(p) +
            " pipeline positions; change the number of micro-batches, or "
            "choose another schedule";
    return std::nullopt;
  }
  Schedule schedule;
  schedule.devices.assign(p, {});
  for (int64_t r = 0; r < p; ++r) {
    std::vector<Action> &actions = schedule.devices[r];
    // The run of `part` with this number, in the order described above.
    auto add = [&](const char *part, int64_t number, bool backward) {
      int64_t chunk = number % (p * v) / p;
      actions.push_back({part, number / (p * v) * p + number % p,
                         (backward ? v - 1 - chunk : chunk) * p + r});
    };
    int64_t warmUp = std::min(m * v, 2 * (p - r - 1) + (v - 1) * p);
    for (int64_t i = 0; i < warmUp; ++i)
      add("F", i, false);
    for (int64_t i = 0; i < m * v; ++i) {
      if (warmUp + i < m * v)
        add("F", warmUp + i, false);
      add("B", i, true);
    }
    for (int64_t c = 0; c < v; ++c)
      appendUpdate(actions, c * p + r);
  }
  return schedule;
}
