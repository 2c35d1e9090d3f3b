//===- Schedules.h - What tests of schedules share --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TEST_UNIT_SCHEDULING_SCHEDULES_H
#define CLEAVE_TEST_UNIT_SCHEDULING_SCHEDULES_H

#include "../TestAll.h"
#include "cleave/Scheduling/Generators/Generators.h"
#include "cleave/Scheduling/Pipeline.h"
#include "cleave/Scheduling/Timeline/Simulate.h"
#include "gtest/gtest.h"
#include <algorithm>
#include <cstdlib>

namespace cleave::scheduling {

using cleave::testAll;

/// How long something may take that must take no more than `seconds`;
/// sanitizers make it slower.
inline double timeLimit(double seconds) {
#ifdef __has_feature
#if __has_feature(address_sanitizer)
  seconds *= 10;
#endif
#endif
  return seconds;
}

inline Schedule parseSchedule(llvm::StringRef text) {
  std::string error;
  std::optional<Schedule> schedule = Schedule::parse(text, error);
  EXPECT_TRUE(schedule) << error;
  return schedule ? *schedule : Schedule();
}

/// A generated schedule and all that is needed to run it.
struct Made {
  Made(llvm::StringRef name, int64_t p, int64_t v, int64_t m,
       int64_t staleness = -1)
      : microBatches(m) {
    std::string error;
    const Generator *generator = findGenerator(name, error);
    EXPECT_TRUE(generator) << error;
    map = {generator->map, p};
    PipelineOptions options;
    options.asynchronous = generator->asynchronous;
    parts = describePipeline(p * v, options);
    std::optional<Schedule> made =
        generateSchedule(name, {p, v, m, staleness}, error);
    EXPECT_TRUE(made) << error;
    if (made)
      schedule = *made;
  }

  Simulation simulate(double f, double i, double w) const {
    std::string error;
    std::optional<Simulation> result = cleave::scheduling::simulate(
        schedule, parts, microBatches, map,
        Costs::uniform(parts, {{"F", f}, {"I", i}, {"W", w}}), error);
    EXPECT_TRUE(result) << error;
    return result ? *result : Simulation();
  }

  std::optional<std::string> verify(const VerifyOptions &options = {}) const {
    return verifySchedule(schedule, parts, microBatches, map, options);
  }

  int64_t microBatches;
  StageMap map;
  std::vector<PartInfo> parts;
  Schedule schedule;
};

/// How many stages per position to try a generator with.
inline std::vector<int64_t> chunksOf(const Generator &generator) {
  return generator.chunks ? std::vector<int64_t>{generator.chunks}
                          : std::vector<int64_t>{2, 3, 4};
}

/// Numbers of micro-batches to try p positions with; all from 2p to 64, or
/// some.
inline std::vector<int64_t> microBatchesOf(int64_t p, int64_t multipleOf = 1) {
  std::vector<int64_t> result;
  for (int64_t m = 2 * p; m <= 64; ++m)
    if (m % multipleOf == 0 &&
        (testAll() || m <= 2 * p + 1 || m == 3 * p || m == 64 / p * p))
      result.push_back(m);
  return result;
}

inline int64_t largest(llvm::ArrayRef<int64_t> values) {
  return *std::max_element(values.begin(), values.end());
}

} // namespace cleave::scheduling

#endif // CLEAVE_TEST_UNIT_SCHEDULING_SCHEDULES_H
