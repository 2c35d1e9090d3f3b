//===- ZeroBubbleH.cpp - Weight gradients fill the bubble -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "GeneratorList.h"

using namespace cleave::scheduling;

/// Rounds of F, I and W, where F is ahead of I and W is behind it. The two
/// distances add up to the same number of micro-batches at each position, so
/// that all positions save as much: `perStage` micro-batches for each stage but
/// one. When F is done, rounds consist of I and W alone: weight gradients fill
/// the gaps until the next input gradient arrives.
static Schedule makeRounds(const PipelineSize &size, int64_t perStage) {
  Schedule schedule;
  schedule.devices.assign(size.devices, {});
  int64_t m = size.microBatches;
  for (int64_t r = 0; r < size.devices; ++r) {
    std::vector<Action> &actions = schedule.devices[r];
    int64_t warmUp = std::min(perStage * (size.devices - r - 1), m - 1);
    int64_t delay = std::min(perStage * (size.devices - 1), m - 1) - warmUp;
    for (int64_t i = 0; i < warmUp; ++i)
      actions.push_back({"F", i, r});
    for (int64_t i = 0; i < m + delay; ++i) {
      if (warmUp + i < m)
        actions.push_back({"F", warmUp + i, r});
      if (i < m)
        actions.push_back({"I", i, r});
      if (i >= delay)
        actions.push_back({"W", i - delay, r});
    }
    actions.push_back({"U", -1, r});
  }
  return schedule;
}

/// ZB-H1, which saves as much as 1F1B. Qi et al., "Zero Bubble Pipeline
/// Parallelism", arXiv 2401.10241, section 2.
///
/// Timeline for p = 3, m = 4, F = I = W = U = 1 (a dot is one idle unit):
///
///   0  F0 F1 F2 .  .  I0 W0 F3 I1 W1 I2 W2 I3 W3 U
///   1  .  F0 F1 .  I0 F2 I1 W0 F3 I2 W1 I3 W2 W3 U
///   2  .  .  F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3 U
///
Generated cleave::scheduling::makeZeroBubbleH1(const PipelineSize &size,
                                               std::string &) {
  return makeRounds(size, 1);
}

/// ZB-H2, with about twice the forwards in flight and no bubble between the
/// first and the last task of a position. The same paper and section.
///
/// Timeline for p = 3, m = 5, F = I = W = U = 1 (a dot is one idle unit):
///
///   0  F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4 U
///   1  .  F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4 U
///   2  .  .  F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4 U
///
Generated cleave::scheduling::makeZeroBubbleH2(const PipelineSize &size,
                                               std::string &) {
  return makeRounds(size, 2);
}
