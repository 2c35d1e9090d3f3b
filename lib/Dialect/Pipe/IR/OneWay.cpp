//===- OneWay.cpp - Schedules with whole backwards ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "GeneratorList.h"

using namespace cleave::pipe;

static void flush(std::vector<Action> &actions, int64_t stage) {
  actions.push_back({"U", -1, stage});
}

Generated cleave::pipe::makeGPipe(const PipelineSize &size, std::string &) {
  Schedule schedule;
  schedule.devices.assign(size.devices, {});
  for (int64_t r = 0; r < size.devices; ++r) {
    for (const char *part : {"F", "B"})
      for (int64_t i = 0; i < size.microBatches; ++i)
        schedule.devices[r].push_back({part, i, r});
    flush(schedule.devices[r], r);
  }
  return schedule;
}

/// A device goes ahead by as many forwards as there are stages behind it, so
/// that the first backward comes back when they are done.
static Schedule alternate(const PipelineSize &size, bool updateEach) {
  Schedule schedule;
  schedule.devices.assign(size.devices, {});
  int64_t m = size.microBatches;
  for (int64_t r = 0; r < size.devices; ++r) {
    std::vector<Action> &actions = schedule.devices[r];
    int64_t ahead = std::min(m, size.devices - r - 1);
    if (updateEach && size.staleness >= 0)
      ahead = std::min(ahead, size.staleness);
    for (int64_t i = 0; i < ahead; ++i)
      actions.push_back({"F", i, r});
    for (int64_t i = 0; i < m; ++i) {
      if (ahead + i < m)
        actions.push_back({"F", ahead + i, r});
      actions.push_back({"B", i, r});
      if (updateEach)
        actions.push_back({"U", i, r});
    }
    if (!updateEach)
      flush(actions, r);
  }
  return schedule;
}

Generated cleave::pipe::makeOneForwardOneBackward(const PipelineSize &size,
                                                  std::string &) {
  return alternate(size, /*updateEach=*/false);
}

Generated cleave::pipe::makePipeDream(const PipelineSize &size, std::string &) {
  return alternate(size, /*updateEach=*/true);
}

/// Rounds of p micro-batches go through the first chunk of all devices, then
/// through the second, and so on; backward the other way round.
Generated cleave::pipe::makeInterleaved(const PipelineSize &size,
                                        std::string &error) {
  int64_t p = size.devices, v = size.chunks, m = size.microBatches;
  if (m % p) {
    error = "interleaved: " + std::to_string(m) +
            " micro-batches are no multiple of " + std::to_string(p) +
            " devices; make them one, or choose another schedule";
    return std::nullopt;
  }
  Schedule schedule;
  schedule.devices.assign(p, {});
  for (int64_t r = 0; r < p; ++r) {
    std::vector<Action> &actions = schedule.devices[r];
    auto add = [&](const char *part, int64_t place, bool back) {
      int64_t chunk = place % (p * v) / p;
      actions.push_back({part, place / (p * v) * p + place % p,
                         (back ? v - 1 - chunk : chunk) * p + r});
    };
    int64_t ahead = std::min(m * v, 2 * (p - r - 1) + (v - 1) * p);
    for (int64_t i = 0; i < ahead; ++i)
      add("F", i, false);
    for (int64_t i = 0; i < m * v; ++i) {
      if (ahead + i < m * v)
        add("F", ahead + i, false);
      add("B", i, true);
    }
    for (int64_t c = 0; c < v; ++c)
      flush(actions, c * p + r);
  }
  return schedule;
}
