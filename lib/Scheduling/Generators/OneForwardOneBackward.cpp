//===- OneForwardOneBackward.cpp - 1F1B, with and without a flush ---------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "GeneratorList.h"

using namespace cleave::scheduling;

/// One forward and one backward in turn, after a warm-up of as many forwards as
/// there are later stages, so that the first input gradient arrives when the
/// warm-up is done. With `updateEach`, an update follows each backward.
static Schedule alternate(const PipelineSize &size, bool updateEach) {
  Schedule schedule;
  schedule.devices.assign(size.devices, {});
  int64_t m = size.microBatches;
  for (int64_t r = 0; r < size.devices; ++r) {
    std::vector<Action> &actions = schedule.devices[r];
    int64_t warmUp = std::min(m, size.devices - r - 1);
    if (updateEach && size.staleness >= 0)
      warmUp = std::min(warmUp, size.staleness);
    for (int64_t i = 0; i < warmUp; ++i)
      actions.push_back({"F", i, r});
    for (int64_t i = 0; i < m; ++i) {
      if (warmUp + i < m)
        actions.push_back({"F", warmUp + i, r});
      actions.push_back({"B", i, r});
      if (updateEach)
        actions.push_back({"U", i, r});
    }
    if (!updateEach)
      appendUpdate(actions, r);
  }
  return schedule;
}

/// 1F1B with a flush, also called PipeDream-flush. Narayanan et al.,
/// "Memory-Efficient Pipeline-Parallel DNN Training", arXiv 2006.09503.
///
/// Timeline for p = 3, m = 4, F = U = 1, B = 2 (a dot is one idle unit):
///
///   0  F0 F1 F2 .  .  .  .  B0    F3 B1    .  B2    .  B3    U
///   1  .  F0 F1 .  .  B0    F2 B1    F3 B2    .  B3    U
///   2  .  .  F0 B0    F1 B1    F2 B2    F3 B3    U
///
Generated
cleave::scheduling::makeOneForwardOneBackward(const PipelineSize &size,
                                              std::string &) {
  return alternate(size, /*updateEach=*/false);
}

/// 1F1B without a flush: each micro-batch has its own update. Harlap et al.,
/// "PipeDream: Fast and Efficient Pipeline Parallel DNN Training", arXiv
/// 1806.03377. A bound on the staleness shortens the warm-up.
///
/// Timeline for p = 3, m = 4, F = U = 1, B = 2 (a dot is one idle unit):
///
///   0  F0 F1 F2 .  .  .  .  B0    U0 F3 B1    U1 .  B2    U2 .  B3    U3
///   1  .  F0 F1 .  .  B0    U0 F2 B1    U1 F3 B2    U2 .  B3    U3
///   2  .  .  F0 B0    U0 F1 B1    U1 F2 B2    U2 F3 B3    U3
///
Generated cleave::scheduling::makePipeDream(const PipelineSize &size,
                                            std::string &) {
  return alternate(size, /*updateEach=*/true);
}
