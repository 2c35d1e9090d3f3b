//===- PlanFacts.h - What planning finds ------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// What planning compilations finds (see Planning/), as structs that reports
/// render.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_REPORTS_PLANFACTS_H
#define CLEAVE_REPORTS_PLANFACTS_H

#include "cleave/Executable/Format/MemoryPlan.h"
#include "cleave/Machines/Prediction.h"
#include <optional>

namespace cleave {

/// Why recomputation is as it is, where it was chosen.
struct RecomputeDecision {
  /// What keeps policies of less time from being chosen.
  enum class Binds : uint8_t { Nothing, MemoryLimit, SavedBytes };
  /// A policy that was tried.
  struct Tried {
    std::string policy;
    /// Of the device that needs most; nothing if the plan is refused, or slower
    /// than another that fits.
    std::optional<double> bytes;
    double seconds = 0;
  };
  /// The chosen policy; if none fits, that of the plan that needs least.
  std::string policy;
  bool fits = false;
  double bytes = 0, limit = 0;
  /// Of a policy that fits.
  double seconds = 0;
  Binds binds = Binds::Nothing;
  std::vector<Tried> tried;
};

/// Why ranks have room for as many rows of experts as they have.
struct ExpertBufferDecision {
  /// Even shares; 0: the rows of all ranks.
  double shares = 0;
  /// Whether an option says so; the rest is 0 then.
  bool given = false;
  /// The bytes of a device's arena with room for all rows, those of buffers of
  /// rows in it, and the most of these that were allowed.
  int64_t arenaBytes = 0, worstBytes = 0, mostBytes = 0;
  /// The arena and those of buffers with as many shares as are taken otherwise;
  /// 0 where there is no such plan, or all rows are no more than that.
  int64_t otherArenaBytes = 0, otherBytes = 0;
  double otherShares = 0;
};

/// The answer of `findFit` (Planning/Fit.h).
struct FitAnswer {
  /// A plan that was tried.
  struct Trial {
    std::string mesh;
    int64_t devices = 1, microBatches = 1;
    /// Those of a micro-batch, on all devices together.
    int64_t samples = 0;
    /// Of the device that needs most; nothing if the plan is refused.
    std::optional<int64_t> bytes;
    bool fits = false;
    std::string recompute, refused;
    /// The bytes at the peak, by kind.
    std::map<std::string, int64_t> kinds;
  };
  /// Whether the question is how many devices; else it is the micro-batch.
  bool devices = false;
  /// Of devices: the axis that grows.
  std::string axis;
  int64_t limit = 0, batch = 0;
  std::vector<Trial> tried;
  /// The indices of the trial that answers, and of the one that needs least.
  std::optional<size_t> answer, smallest;
  /// The flag that asks for the answer.
  std::string flag;
  /// What would help, if nothing fits.
  std::vector<std::string> advice;
};

} // namespace cleave

#endif // CLEAVE_REPORTS_PLANFACTS_H
