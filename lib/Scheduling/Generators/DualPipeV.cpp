//===- DualPipeV.cpp - The DualPipeV schedule -----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "../SchedulingProblem.h"
#include "GeneratorList.h"

using namespace cleave::scheduling;

/// Position r holds stage r (the near chunk) and stage 2p-1-r (the far chunk).
/// It runs near forwards until the first far one can run, then forwards of both
/// chunks until the first backward can run, and then alternates a forward of
/// one chunk with a backward of the other, which can overlap. In the warm-up
/// and the cool-down, where no forward is left to overlap with, backwards that
/// another position waits for are split into I and W.
///
/// DualPipe: DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437,
/// section 3.2.1; this is its "cut-in-half" form, in which each stage is held
/// once.
///
/// Timeline for p = 3, m = 6, F = I = W = U = 1, B = 2 (the far chunk in small
/// letters, a dot is one idle unit), from time 0 to 20 and from 20 to 40:
///
///   0  F0F1F2F3F4f0i0w0f1i1w1f2F5b2  f3B0  b3
///   1  . F0F1F2f0F3f1i0w0f2F4b1  f3B0  F5b2
///   2  . . F0f0F1f1F2f2F3b0  f3B0  F4b1  f4B1
///
///   0    f4. B1  b4  f5. B2  b5  I3W3I4W4I5W5U u
///   1  f4B1  b3  f5. B2  b4  B3  i5I4w5I5W4W5U u
///   2    F5b2  f5B2  b3  B3  b4  I4i5I5W4w5W5U u
///
Generated cleave::scheduling::makeDualPipeV(const PipelineSize &size,
                                            std::string &error) {
  int64_t p = size.devices, m = size.microBatches;
  if (m < 2 * p) {
    error = "dualpipe-v: " + std::to_string(m) +
            " micro-batches are too few for " + std::to_string(p) +
            " pipeline positions; give at least " + std::to_string(2 * p);
    return std::nullopt;
  }
  SchedulingProblem problem({StageMap::Kind::V, p}, 2 * p, m);
  TaskOrders orders;
  for (int64_t r = 0; r < p; ++r) {
    TaskOrder &order = orders.emplace_back();
    int16_t near = r, far = 2 * p - 1 - r;
    int64_t laterPositions = p - 1 - r;
    auto add = [&](std::initializer_list<StageTask> tasks) {
      order.insert(order.end(), tasks);
    };
    for (int64_t i = 0; i < 2 * laterPositions; ++i)
      add({{F, near}});
    for (int64_t i = 0; i <= r; ++i)
      add({{F, near}, {F, far}});
    for (int64_t i = 0; i < laterPositions; ++i)
      add({{I, far}, {W, far}, {F, far}});
    for (int64_t i = 0; i < m - 2 * p + r + 1; ++i)
      add({{F, near}, {B, far}, {F, far}, {B, near}});
    for (int64_t i = 0; i < laterPositions; ++i)
      add({{B, far}, {F, far}, {B, near}});
    // In the second half of these, weight gradients are delayed, to fill the
    // gaps of the cool-down.
    TaskOrder delayed;
    for (int64_t i = 0; i <= 2 * r + 1; ++i) {
      int16_t stage = i % 2 ? near : far;
      if (i <= r) {
        add({{B, stage}});
        continue;
      }
      add({{I, stage}});
      delayed.push_back({W, stage});
    }
    size_t next = 0;
    for (int64_t i = 0; i < laterPositions; ++i) {
      order.push_back(delayed[next++]);
      add({{I, near}});
      delayed.push_back({W, near});
    }
    order.insert(order.end(), delayed.begin() + next, delayed.end());
  }
  return problem.toSchedule(orders, /*update=*/true);
}
