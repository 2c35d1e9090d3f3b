//===- GPipe.cpp - All forwards, then all backwards -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "GeneratorList.h"

using namespace cleave::scheduling;

/// All forwards of a position, then all its backwards. Huang et al., "GPipe:
/// Efficient Training of Giant Neural Networks using Pipeline Parallelism",
/// arXiv 1811.06965, section 2.
///
/// Timeline for p = 3, m = 3, F = U = 1, B = 2 (a dot is one idle unit):
///
///   0  F0 F1 F2 .  .  .  .  .  .  B0    B1    B2    U
///   1  .  F0 F1 F2 .  .  .  B0    B1    B2    U
///   2  .  .  F0 F1 F2 B0    B1    B2    U
///
Generated cleave::scheduling::makeGPipe(const PipelineSize &size,
                                        std::string &) {
  Schedule schedule;
  schedule.devices.assign(size.devices, {});
  for (int64_t r = 0; r < size.devices; ++r) {
    for (const char *part : {"F", "B"})
      for (int64_t i = 0; i < size.microBatches; ++i)
        schedule.devices[r].push_back({part, i, r});
    appendUpdate(schedule.devices[r], r);
  }
  return schedule;
}
