//===- ZeroBubble.cpp - Weight gradients fill the bubble ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "GeneratorList.h"

using namespace cleave::pipe;

/// Of the rounds F I W of a device, F runs ahead and W stays behind, in all by
/// the same number of micro-batches on each device, so that all save as much.
/// A round that F has left has I and W alone: weight gradients fill the gaps
/// until the gradient of the next input comes.
static Schedule makeRounds(const PipelineSize &size, int64_t each) {
  Schedule schedule;
  schedule.devices.assign(size.devices, {});
  int64_t m = size.microBatches;
  for (int64_t r = 0; r < size.devices; ++r) {
    std::vector<Action> &actions = schedule.devices[r];
    int64_t ahead = std::min(each * (size.devices - r - 1), m - 1);
    int64_t behind = std::min(each * (size.devices - 1), m - 1) - ahead;
    for (int64_t i = 0; i < ahead; ++i)
      actions.push_back({"F", i, r});
    for (int64_t i = 0; i < m + behind; ++i) {
      if (ahead + i < m)
        actions.push_back({"F", ahead + i, r});
      if (i < m)
        actions.push_back({"I", i, r});
      if (i >= behind)
        actions.push_back({"W", i - behind, r});
    }
    actions.push_back({"U", -1, r});
  }
  return schedule;
}

Generated cleave::pipe::makeZeroBubbleH1(const PipelineSize &size,
                                         std::string &) {
  return makeRounds(size, 1);
}

Generated cleave::pipe::makeZeroBubbleH2(const PipelineSize &size,
                                         std::string &) {
  return makeRounds(size, 2);
}
